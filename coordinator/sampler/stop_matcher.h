/* Stop strings in streamed text.
 *
 * The text ends in front of the stop string that is complete first (of several complete at the
 * same byte, the longest one), wherever pushes cut the text. What could still become a stop string
 * is held back. Used by one thread at a time.
 */
#ifndef VF_COORDINATOR_SAMPLER_STOP_MATCHER_H
#define VF_COORDINATOR_SAMPLER_STOP_MATCHER_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>

#define VF_STOP_COUNT_MAX 8
#define VF_STOP_BYTES_MAX 1024

struct vf_stop_matcher;

/* Copies the strings. VF_ERR_USAGE naming --stop: too many, empty, too long, not UTF-8. */
enum vf_code vf_stop_matcher_create(const char *const *stops, size_t count,
                                    struct vf_stop_matcher **out, struct vf_err *err);
void vf_stop_matcher_destroy(struct vf_stop_matcher *m);

/* Takes text (whole characters) and gives what is certain to belong to the output; *emit stays
 * valid until the next call. After a stop, everything pushed is dropped. */
enum vf_code vf_stop_matcher_push(struct vf_stop_matcher *m, const char *text, size_t n,
                                  const char **emit, size_t *n_emit, struct vf_err *err);
bool vf_stop_matcher_stopped(const struct vf_stop_matcher *m);
/* The end of the text: gives what is held back, nothing after a stop. */
void vf_stop_matcher_flush(struct vf_stop_matcher *m, const char **emit, size_t *n_emit);

#endif
