#include "common/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Texts quote file names, tensor names and JSON from outside: a message stays one line, and no
 * escape sequence reaches a terminal. */
static void make_printable(char *text)
{
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
}

enum vf_code vf_err_set(struct vf_err *err, enum vf_code code, const char *fmt, ...)
{
    if (!err)
        return code;
    err->code = code;
    err->sys_errno = 0;
    va_list args;
    va_start(args, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    make_printable(err->text);
    return code;
}

enum vf_code vf_err_errno(struct vf_err *err, enum vf_code code, int sys_errno, const char *fmt,
                          ...)
{
    if (!err)
        return code;
    err->code = code;
    err->sys_errno = sys_errno;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof err->text)
        snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s", strerror(sys_errno));
    make_printable(err->text);
    return code;
}

enum vf_code vf_err_prepend(struct vf_err *err, const char *fmt, ...)
{
    if (!err)
        return VF_OK;
    char old[sizeof err->text];
    memcpy(old, err->text, sizeof old);
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof err->text)
        snprintf(err->text + n, sizeof err->text - (size_t)n, "%s", old);
    make_printable(err->text);
    return err->code;
}

enum vf_code vf_err_append(struct vf_err *err, const char *fmt, ...)
{
    if (!err)
        return VF_OK;
    size_t n = strlen(err->text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(err->text + n, sizeof err->text - n, fmt, args);
    va_end(args);
    make_printable(err->text + n);
    return err->code;
}

int vf_exit_status(enum vf_code code)
{
    switch (code) {
    case VF_OK:
        return 0;
    case VF_ERR_USAGE:
        return 2;
    case VF_ERR_CORRUPT:
    case VF_ERR_UNSUPPORTED:
    case VF_ERR_NOT_FOUND:
        return 3;
    default:
        return 1;
    }
}

const char *vf_code_name(enum vf_code code)
{
    static const char *const names[VF_CODE_COUNT] = {
        [VF_OK] = "ok",
        [VF_ERR_USAGE] = "usage",
        [VF_ERR_CORRUPT] = "corrupt",
        [VF_ERR_UNSUPPORTED] = "unsupported",
        [VF_ERR_NOT_FOUND] = "not-found",
        [VF_ERR_NO_MEMORY] = "no-memory",
        [VF_ERR_IO] = "io",
        [VF_ERR_TIMEOUT] = "timeout",
        [VF_ERR_PEER_LOST] = "peer-lost",
        [VF_ERR_CANCELLED] = "cancelled",
        [VF_ERR_LIMIT] = "limit",
        [VF_ERR_PROTOCOL] = "protocol",
        [VF_ERR_DENIED] = "denied",
        [VF_ERR_BUSY] = "busy",
        [VF_ERR_INTERNAL] = "internal",
    };
    return (unsigned)code < VF_CODE_COUNT ? names[code] : "unknown";
}

void vf_assert_fail(const char *cond, const char *file, int line)
{
    fprintf(stderr, "vflow: internal error: %s at %s:%d\n", cond, file, line);
    abort();
}
