/* Monotonic time. All deadlines in the system are CLOCK_MONOTONIC nanoseconds. */
#ifndef VF_COMMON_BASE_CLOCK_H
#define VF_COMMON_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t vf_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}
#define VF_MS(n) ((uint64_t)(n)*1000000u)
#define VF_S(n)  ((uint64_t)(n)*1000000000u)

#endif
