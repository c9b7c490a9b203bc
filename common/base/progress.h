/* A progress bar on stderr: what, how far, how fast, how much longer.
 *
 * Drawn on a terminal only, at its width, at most ten times a second, and not before the work has
 * taken a while; nothing stays on the screen. Process-wide, as the terminal is; one thread draws.
 */
#ifndef VF_COMMON_BASE_PROGRESS_H
#define VF_COMMON_BASE_PROGRESS_H

#include <stdint.h>

enum vf_progress_unit { VF_PROGRESS_ITEMS, VF_PROGRESS_BYTES, VF_PROGRESS_TOKENS };

/* Work called `what` is `done` of `total`; the first call of a name begins its clock, the one with
 * done == total ends it and takes the bar away. A total may grow. */
void vf_progress(const char *what, enum vf_progress_unit unit, uint64_t done, uint64_t total);
/* Takes the bar away before something else goes to the terminal; the next call draws it again. */
void vf_progress_clear(void);

#endif
