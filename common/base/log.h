/* Log lines on stderr: "LEVEL role: text". Results never go through here.
 *
 * error and warn need a person, info fires once per process event, debug once per request,
 * trace once per token or layer. The threshold is process-wide and set once at the start
 * (default warn; -v is info, -vv debug, or VFLOW_LOG=trace).
 */
#ifndef VF_COMMON_BASE_LOG_H
#define VF_COMMON_BASE_LOG_H

#include <stdbool.h>

enum vf_log_level { VF_LOG_ERROR, VF_LOG_WARN, VF_LOG_INFO, VF_LOG_DEBUG, VF_LOG_TRACE };

void vf_log_init(const char *role, enum vf_log_level level);
enum vf_log_level vf_log_level(void);
void vf_log_write(enum vf_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#define vf_log(level, ...)                                                                         \
    do {                                                                                           \
        if ((level) <= vf_log_level())                                                             \
            vf_log_write((level), __VA_ARGS__);                                                    \
    } while (0)
#define vf_error(...) vf_log(VF_LOG_ERROR, __VA_ARGS__)
#define vf_warn(...)  vf_log(VF_LOG_WARN, __VA_ARGS__)
#define vf_info(...)  vf_log(VF_LOG_INFO, __VA_ARGS__)
#define vf_debug(...) vf_log(VF_LOG_DEBUG, __VA_ARGS__)

#endif
