/* One error value for every fallible function.
 *
 * A function that can fail returns an enum vf_code (0 is success) and fills the caller's
 * struct vf_err once, where the fault happened. Callers prepend context on the way up:
 * "layer 12, expert 3: ...". The same code and text cross processes in one protobuf message.
 * A vf_err owns no memory; it may be copied. Every function accepts err == NULL.
 */
#ifndef VF_COMMON_BASE_ERR_H
#define VF_COMMON_BASE_ERR_H

enum vf_code {
    VF_OK = 0,
    VF_ERR_USAGE,       /* wrong option or argument */
    VF_ERR_CORRUPT,     /* a file or message breaks its own format */
    VF_ERR_UNSUPPORTED, /* well formed, but names something this program doesn't do */
    VF_ERR_NOT_FOUND,   /* a file that was named doesn't exist */
    VF_ERR_NO_MEMORY,
    VF_ERR_IO,
    VF_ERR_TIMEOUT,
    VF_ERR_PEER_LOST, /* a process died or stopped answering */
    VF_ERR_CANCELLED,
    VF_ERR_LIMIT,    /* a documented limit would be exceeded (context, batch, budget) */
    VF_ERR_PROTOCOL, /* a message out of place */
    VF_ERR_DENIED,   /* permission or authentication */
    VF_ERR_BUSY,
    VF_ERR_INTERNAL, /* our own bug, found by a check */
    VF_CODE_COUNT
};

struct vf_err {
    enum vf_code code;
    int sys_errno; /* 0 when no system call was involved */
    char text[640];
};

/* Each sets code and text and returns code; control characters in the text become '?', so that it
 * is one line whatever it quotes. vf_err_errno appends ": strerror(sys_errno)". */
enum vf_code vf_err_set(struct vf_err *err, enum vf_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
enum vf_code vf_err_errno(struct vf_err *err, enum vf_code code, int sys_errno, const char *fmt,
                          ...) __attribute__((format(printf, 4, 5)));
/* Puts formatted context in front of the text; returns err->code. */
enum vf_code vf_err_prepend(struct vf_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Puts formatted text behind it; returns err->code. */
enum vf_code vf_err_append(struct vf_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Process exit status: 0 done, 1 failed while running, 2 wrong usage, 3 bad input file. */
int vf_exit_status(enum vf_code code);
/* "corrupt file", "timeout", ...: stable words, used in JSON output. */
const char *vf_code_name(enum vf_code code);

/* An assertion that stays on in release; for our own bugs only, never for outside data. */
#define VF_ASSERT(cond) ((cond) ? (void)0 : vf_assert_fail(#cond, __FILE__, __LINE__))
void vf_assert_fail(const char *cond, const char *file, int line) __attribute__((noreturn));

#endif
