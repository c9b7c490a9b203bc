/* What this build is. */
#ifndef VF_COMMON_BASE_VERSION_H
#define VF_COMMON_BASE_VERSION_H

/* Prints the program's --version: version, commit, build type, compiler, kernel tiers. */
void vf_version_print(const char *program);

#endif
