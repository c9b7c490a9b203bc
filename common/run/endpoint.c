#include "common/run/endpoint.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TCP      "tcp://"
#define PORT_MAX 65535

struct parts {
    char host[256]; /* without brackets */
    bool bracketed;
    const char *port;
};

static enum vf_code refuse(const char *endpoint, const char *found, const char *allowed,
                           struct vf_err *err)
{
    return vf_err_set(err, VF_ERR_USAGE, "endpoint '%s': %s found, allowed: %s", endpoint, found,
                      allowed);
}

static enum vf_code split(const char *endpoint, struct parts *p, struct vf_err *err)
{
    static const char form[] = "tcp://ADDRESS:PORT, for IPv6 tcp://[ADDRESS]:PORT";
    const char *host = endpoint + strlen(TCP), *colon = strrchr(host, ':');
    if (!colon)
        return refuse(endpoint, "no port", form, err);
    size_t n = (size_t)(colon - host);
    p->port = colon + 1;
    p->bracketed = n >= 2 && host[0] == '[' && host[n - 1] == ']';
    if (p->bracketed)
        host++, n -= 2;
    if (n == 0 || n >= sizeof p->host)
        return refuse(endpoint, n ? "a longer name than there can be" : "no address", form, err);
    snprintf(p->host, sizeof p->host, "%.*s", (int)n, host);
    if (!p->bracketed && strchr(p->host, ':'))
        return refuse(endpoint, "an address with colons and without brackets", form, err);
    return VF_OK;
}

static enum vf_code check_port(const char *endpoint, const char *port, enum vf_endpoint_use use,
                               struct vf_err *err)
{
    bool binds = use == VF_ENDPOINT_BIND;
    size_t digits = strspn(port, "0123456789");
    long number = digits && digits <= 5 ? strtol(port, NULL, 10) : PORT_MAX + 1L;
    if (binds && strcmp(port, "*") == 0)
        return VF_OK;
    if (digits && !port[digits] && number >= 1 && number <= PORT_MAX)
        return VF_OK;
    char found[48];
    snprintf(found, sizeof found, "port '%.32s'", port);
    return refuse(endpoint, found, binds ? "1 to 65535, or * for any that is free" : "1 to 65535",
                  err);
}

static bool is_address(const struct parts *p)
{
    struct in6_addr six;
    struct in_addr four;
    return p->bracketed ? inet_pton(AF_INET6, p->host, &six) == 1
                        : inet_pton(AF_INET, p->host, &four) == 1;
}

/* The addresses of a name; IPv4 comes first where there is one, because that is what a server is
 * most often bound to. The caller frees *list. */
static enum vf_code look_up(const char *endpoint, const struct parts *p, struct addrinfo **list,
                            struct vf_err *err)
{
    static const int families[] = {AF_INET, AF_INET6};
    int rc = 0;
    for (int i = 0; i < 2; i++) {
        const struct addrinfo hints = {.ai_family = families[i], .ai_socktype = SOCK_STREAM};
        if ((rc = getaddrinfo(p->host, NULL, &hints, list)) == 0)
            return VF_OK;
    }
    return vf_err_set(err, rc == EAI_NONAME ? VF_ERR_USAGE : VF_ERR_IO,
                      "endpoint '%s': '%s' is no address, and as a name it can't be resolved (%s); "
                      "an address works, e.g. tcp://127.0.0.1:%s",
                      endpoint, p->host, gai_strerror(rc), p->port);
}

static enum vf_code resolve(const char *endpoint, const struct parts *p, enum vf_endpoint_use use,
                            struct vf_endpoint *out, struct vf_err *err)
{
    struct addrinfo *list;
    char address[INET6_ADDRSTRLEN];
    enum vf_code code = look_up(endpoint, p, &list, err);
    if (code)
        return code;
    out->ipv6 = list->ai_family == AF_INET6;
    int rc = getnameinfo(list->ai_addr, list->ai_addrlen, address, sizeof address, NULL, 0,
                         NI_NUMERICHOST);
    freeaddrinfo(list);
    if (rc)
        return vf_err_set(err, VF_ERR_IO, "endpoint '%s': %s", endpoint, gai_strerror(rc));
    if (use == VF_ENDPOINT_BIND)
        snprintf(out->text, sizeof out->text, out->ipv6 ? TCP "[%s]:%s" : TCP "%s:%s", address,
                 p->port);
    return VF_OK;
}

enum vf_code vf_endpoint_check(const char *endpoint, enum vf_endpoint_use use,
                               struct vf_endpoint *out, struct vf_err *err)
{
    struct parts p;
    size_t length = strlen(endpoint);
    if (length >= sizeof out->text)
        return vf_err_set(err, VF_ERR_USAGE, "endpoint of %zu characters, at most %d are allowed",
                          length, VF_ENDPOINT_MAX - 1);
    out->ipv6 = false;
    memcpy(out->text, endpoint, length + 1);
    if (strncmp(endpoint, TCP, strlen(TCP)) != 0)
        return VF_OK;
    enum vf_code code = split(endpoint, &p, err);
    if (!code)
        code = check_port(endpoint, p.port, use, err);
    if (code)
        return code;
    out->ipv6 = p.bracketed || strcmp(p.host, "*") == 0;
    if (is_address(&p))
        return VF_OK;
    if (p.bracketed)
        return refuse(endpoint, "no IPv6 address in the brackets", "e.g. [::1]", err);
    if (use == VF_ENDPOINT_BIND && (strcmp(p.host, "*") == 0 || if_nametoindex(p.host)))
        return VF_OK;
    return resolve(endpoint, &p, use, out, err);
}
