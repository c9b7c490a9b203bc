#include "coordinator/serve/zap.h"

#include "common/base/log.h"

#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define ZAP_ENDPOINT "inproc://zeromq.zap.01"
#define FRAMES_MAX   8
#define FRAME_BYTES  256

/* Frames of a question, in order; a CURVE question has exactly these. */
enum { ZAP_VERSION, ZAP_REQUEST_ID, ZAP_DOMAIN, ZAP_ADDRESS, ZAP_IDENTITY, ZAP_MECHANISM, ZAP_KEY };
#define ZAP_CURVE_FRAMES (ZAP_KEY + 1)

struct vf_zap {
    void *socket;
    const struct vf_curve_list *allowed;
};

struct question {
    uint8_t data[FRAMES_MAX][FRAME_BYTES]; /* longer frames are cut, and match nothing then */
    size_t bytes[FRAMES_MAX];
    int count;
};

enum vf_code vf_zap_open(void *context, const struct vf_curve_list *allowed, struct vf_zap **out,
                         struct vf_err *err)
{
    *out = NULL;
    struct vf_zap *zap = calloc(1, sizeof *zap);
    if (!zap)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the key check");
    zap->allowed = allowed;
    zap->socket = zmq_socket(context, ZMQ_REP);
    if (!zap->socket || zmq_bind(zap->socket, ZAP_ENDPOINT) != 0) {
        vf_err_set(err, VF_ERR_INTERNAL, "can't open the key check: %s", zmq_strerror(zmq_errno()));
        vf_zap_close(zap);
        return VF_ERR_INTERNAL;
    }
    *out = zap;
    return VF_OK;
}

void vf_zap_close(struct vf_zap *zap)
{
    if (!zap)
        return;
    if (zap->socket)
        zmq_close(zap->socket);
    free(zap);
}

void *vf_zap_socket(const struct vf_zap *zap)
{
    return zap->socket;
}

/* False when nothing is waiting. */
static bool receive_question(void *socket, struct question *q)
{
    q->count = 0;
    int more = 1;
    while (more) {
        uint8_t spare[FRAME_BYTES];
        uint8_t *to = q->count < FRAMES_MAX ? q->data[q->count] : spare;
        int n = zmq_recv(socket, to, FRAME_BYTES, ZMQ_DONTWAIT);
        if (n < 0)
            return false;
        if (q->count < FRAMES_MAX)
            q->bytes[q->count] = n < FRAME_BYTES ? (size_t)n : FRAME_BYTES;
        q->count++;
        size_t size = sizeof more;
        zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size);
    }
    return true;
}

static bool frame_is(const struct question *q, int i, const char *word)
{
    return q->bytes[i] == strlen(word) && memcmp(q->data[i], word, q->bytes[i]) == 0;
}

static bool admits(const struct vf_zap *zap, const struct question *q)
{
    return q->count == ZAP_CURVE_FRAMES && frame_is(q, ZAP_VERSION, "1.0") &&
           frame_is(q, ZAP_MECHANISM, "CURVE") && q->bytes[ZAP_KEY] == VF_CURVE_KEY_BYTES &&
           (!zap->allowed || vf_curve_list_has(zap->allowed, q->data[ZAP_KEY]));
}

static void answer(void *socket, const struct question *q, bool admit)
{
    char user[VF_CURVE_KEY_CHARS + 1] = "";
    if (q->count == ZAP_CURVE_FRAMES && q->bytes[ZAP_KEY] == VF_CURVE_KEY_BYTES)
        zmq_z85_encode(user, q->data[ZAP_KEY], VF_CURVE_KEY_BYTES);
    if (!admit)
        vf_info("refused a client with key '%s' from %.*s", user,
                q->count > ZAP_ADDRESS ? (int)q->bytes[ZAP_ADDRESS] : 0,
                (const char *)q->data[ZAP_ADDRESS]);
    size_t id_bytes = q->count > ZAP_REQUEST_ID ? q->bytes[ZAP_REQUEST_ID] : 0;
    const char *status = admit ? "200" : "400";
    const char *text = admit ? "OK" : "this key isn't allowed";
    const char *name = admit ? user : "";
    const struct {
        const void *data;
        size_t bytes;
    } frames[] = {{"1.0", 3},           {q->data[ZAP_REQUEST_ID], id_bytes},
                  {status, 3},          {text, strlen(text)},
                  {name, strlen(name)}, {"", 0}};
    for (int i = 0; i < 6; i++)
        zmq_send(socket, frames[i].data, frames[i].bytes, ZMQ_DONTWAIT | (i < 5 ? ZMQ_SNDMORE : 0));
}

void vf_zap_serve(struct vf_zap *zap)
{
    struct question q;
    while (receive_question(zap->socket, &q))
        answer(zap->socket, &q, admits(zap, &q));
}
