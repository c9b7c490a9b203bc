/* Where the test data lie: in VFLOW_SHARED, else in ../shared beside the source, else in
 * tests/golden, which holds a small set of the same folders. */
#ifndef VF_TESTS_SUPPORT_DATA_H
#define VF_TESTS_SUPPORT_DATA_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((unused)) static const char *data_dir(void)
{
    static char path[1024];
    const char *given = getenv("VFLOW_SHARED"), *source = getenv("VFLOW_SOURCE");
    if (given)
        return given;
    if (!source)
        source = ".";
    snprintf(path, sizeof path, "%s/../shared/golden", source);
    if (access(path, R_OK) == 0)
        snprintf(path, sizeof path, "%s/../shared", source);
    else
        snprintf(path, sizeof path, "%s/tests/golden", source);
    return path;
}

#endif
