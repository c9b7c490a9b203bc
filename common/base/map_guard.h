/* A mapped file that shrinks, or whose drive fails, is a SIGBUS at the next touch of the lost page.
 * The guard turns that into one sentence that names the file, and status 1. Process-wide; the last
 * file named counts.
 */
#ifndef VF_COMMON_BASE_MAP_GUARD_H
#define VF_COMMON_BASE_MAP_GUARD_H

void vf_map_guard_install(const char *path);

#endif
