/* A mapped file that shrinks, or whose drive fails, is a SIGBUS at the next touch of the lost page.
 * The guard turns that into one sentence that names the file, and status 1. Any other SIGBUS ends
 * the process as it would without a guard. Process-wide; any thread may call.
 */
#ifndef VF_COMMON_BASE_MAP_GUARD_H
#define VF_COMMON_BASE_MAP_GUARD_H

#include <stdint.h>

#define VF_MAP_GUARDS_MAX 64u /* mappings at a time; those beyond aren't guarded */

/* path is borrowed until the guard is removed. */
void vf_map_guard_add(const void *base, uint64_t bytes, const char *path);
void vf_map_guard_remove(const void *base); /* before it is unmapped */

#endif
