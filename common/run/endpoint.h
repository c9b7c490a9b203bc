/* Endpoints as people write them, checked before libzmq sees them: libzmq takes port 99999 for
 * 34463 and binds to addresses only, which it doesn't say.
 *
 *     ipc:///path         left as it is
 *     tcp://HOST:PORT     HOST: an IPv4 address, an IPv6 address in brackets, a name, for binding
 *                         also * or an interface; PORT: 1 to 65535, for binding also * (any)
 */
#ifndef VF_COMMON_RUN_ENDPOINT_H
#define VF_COMMON_RUN_ENDPOINT_H

#include "common/base/err.h"

#include <stdbool.h>

#define VF_ENDPOINT_MAX 320 /* a name of 255 characters fits */

enum vf_endpoint_use { VF_ENDPOINT_BIND, VF_ENDPOINT_CONNECT };

struct vf_endpoint {
    char text[VF_ENDPOINT_MAX]; /* for libzmq */
    bool ipv6; /* ZMQ_IPV6: false keeps an IPv4 address from becoming ::ffff:a.b.c.d */
};

/* VF_ERR_USAGE says what is wrong with the endpoint. A name is looked up, which may ask a name
 * server (VF_ERR_IO when none answers): binding takes its first address; connecting keeps the name,
 * which libzmq resolves anew with every attempt. */
enum vf_code vf_endpoint_check(const char *endpoint, enum vf_endpoint_use use,
                               struct vf_endpoint *out, struct vf_err *err);

#endif
