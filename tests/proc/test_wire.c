/* The framing of messages: what arrives, what is refused and with which code, and that a socket
 * goes on working after every refusal. */
#include "common/base/clock.h"
#include "common/run/wire.h"
#include "tap.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

static void *context, *router;
static char directory[] = "/tmp/vfw-XXXXXX", endpoint[64];

static void *open_socket(enum vf_wire_type type, const char *identity)
{
    struct vf_err err;
    struct vf_wire_options options = {.type = type, .identity = identity};
    void *socket;
    if (vf_wire_open(context, &options, &socket, &err) != VF_OK) {
        note("%s", err.text);
        exit(1);
    }
    return socket;
}

static Vflow__Envelope hello_envelope(Vflow__Hello *hello)
{
    vflow__hello__init(hello);
    hello->index = 3;
    hello->run_id = "a run";
    Vflow__Envelope m = VFLOW__ENVELOPE__INIT;
    m.version = VF_WIRE_VERSION;
    m.request_id = 77;
    m.body_case = VFLOW__ENVELOPE__BODY_HELLO;
    m.hello = hello;
    return m;
}

static bool hello_arrives(void *dealer)
{
    Vflow__Hello hello;
    Vflow__Envelope m = hello_envelope(&hello), *got = NULL;
    struct vf_wire_peer from;
    bool good = vf_wire_send(dealer, NULL, &m, NULL) == VF_OK &&
                vf_wire_receive(router, 5000, &from, &got, NULL) == VF_OK &&
                got->body_case == VFLOW__ENVELOPE__BODY_HELLO && got->hello->index == 3 &&
                got->request_id == 77 && strcmp(got->hello->run_id, "a run") == 0;
    if (got)
        vflow__envelope__free_unpacked(got, NULL);
    return good;
}

static void test_conversation(void)
{
    void *dealer = open_socket(VF_WIRE_DEALER, "stage-3");
    struct vf_err err;
    ok(vf_wire_connect(dealer, endpoint, &err) == VF_OK, "a dealer connects");
    ok(hello_arrives(dealer), "its message arrives whole");

    Vflow__Hello hello;
    Vflow__Envelope m = hello_envelope(&hello), *got = NULL;
    struct vf_wire_peer peer = {.id = "stage-3", .id_bytes = 7};
    ok(vf_wire_send(router, &peer, &m, &err) == VF_OK &&
           vf_wire_receive(dealer, 5000, NULL, &got, &err) == VF_OK && got->request_id == 77,
       "the answer finds it by its identity");
    if (got)
        vflow__envelope__free_unpacked(got, NULL);

    struct vf_wire_peer nobody = {.id = "stage-9", .id_bytes = 7};
    ok(vf_wire_send(router, &nobody, &m, &err) == VF_ERR_PEER_LOST, "an unknown peer is lost");
    ok(vf_wire_send(router, &peer, &m, &err) == VF_OK, "the next send is in order");
    ok(vf_wire_receive(dealer, 5000, NULL, &got, &err) == VF_OK, "and arrives");
    vflow__envelope__free_unpacked(got, NULL);
    vf_wire_close(dealer);
}

static void test_deadline(void)
{
    struct vf_err err;
    Vflow__Envelope *got = (Vflow__Envelope *)1;
    uint64_t began = vf_now_ns();
    ok(vf_wire_receive(router, 120, NULL, &got, &err) == VF_ERR_TIMEOUT && !got,
       "nothing arrives: timeout");
    uint64_t took = vf_now_ns() - began;
    ok(took >= VF_MS(119) && took < VF_S(10), "after the time given (%.0f ms)",
       (double)took * 1e-6);
    ok(vf_wire_receive(router, 0, NULL, &got, &err) == VF_ERR_TIMEOUT, "0 only looks");
}

static void send_raw(void *socket, const void *data, size_t n, int flags)
{
    if (zmq_send(socket, data, n, flags) < 0)
        note("zmq_send: %s", zmq_strerror(zmq_errno()));
}

/* name: the identity of who sent it, five letters. */
static void refused(const char *what, const char *name, void *dealer)
{
    struct vf_err err = {0};
    struct vf_wire_peer from = {.id_bytes = 0};
    Vflow__Envelope *got = NULL;
    enum vf_code code = vf_wire_receive(router, 20000, &from, &got, &err);
    ok(code == VF_ERR_PROTOCOL && !got && err.text[0], "%s is refused: %s", what, err.text);
    ok(from.id_bytes == 5 && memcmp(from.id, name, 5) == 0, "%s: the sender is known", what);
    ok(hello_arrives(dealer), "%s: the socket goes on", what);
}

static void test_refusals(void)
{
    void *rogue = open_socket(VF_WIRE_DEALER, "rogue");
    void *dealer = open_socket(VF_WIRE_DEALER, "fine");
    vf_wire_connect(rogue, endpoint, NULL);
    vf_wire_connect(dealer, endpoint, NULL);

    send_raw(rogue, "\xff\xff\xff\xff", 4, 0);
    refused("garbage", "rogue", dealer);
    send_raw(rogue, "", 0, 0);
    refused("an empty message", "rogue", dealer); /* version 0 */
    send_raw(rogue, "\x08\x02", 2, 0);
    refused("version 2", "rogue", dealer);
    send_raw(rogue, "\x08\x01", 2, ZMQ_SNDMORE);
    send_raw(rogue, "\x08\x01", 2, ZMQ_SNDMORE);
    send_raw(rogue, "\x08\x01", 2, 0);
    refused("a message of three frames", "rogue", dealer);
    send_raw(rogue, "\x08\x01\x5a\xff\xff\xff\xff\x0f", 8, 0); /* field 11 of 4 GiB */
    refused("a length beyond the message", "rogue", dealer);

    size_t n = (size_t)VF_WIRE_MESSAGE_MAX + 1;
    char *big = calloc(1, n);
    send_raw(rogue, big, n, 0);
    refused("a message one byte too long", "rogue", dealer);
    free(big);
    vf_wire_close(rogue);
    vf_wire_close(dealer);
}

/* A step of millions of empty columns: two bytes each on the wire, a hundred in memory. */
static void test_unfolding(void)
{
    void *rogue = open_socket(VF_WIRE_DEALER, "large");
    void *dealer = open_socket(VF_WIRE_DEALER, "other");
    vf_wire_connect(rogue, endpoint, NULL);
    vf_wire_connect(dealer, endpoint, NULL);
    const uint32_t payload = 32u << 20;
    uint8_t *message = malloc(payload + 16);
    uint8_t *p = message;
    *p++ = 0x08, *p++ = 0x01; /* version 1 */
    *p++ = 13 << 3 | 2;       /* step */
    for (uint32_t v = payload; v; v >>= 7)
        *p++ = (uint8_t)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
    for (uint32_t i = 0; i < payload; i += 2) {
        p[i] = 2 << 3 | 2; /* columns */
        p[i + 1] = 0;
    }
    send_raw(rogue, message, (size_t)(p - message) + payload, 0);
    free(message);
    refused("a message that unfolds to gigabytes", "large", dealer);
    vf_wire_close(rogue);
    vf_wire_close(dealer);
}

static void test_last_words(void)
{
    void *other = vf_wire_context_create(NULL);
    struct vf_wire_options options = {.type = VF_WIRE_DEALER, .identity = "leaver"};
    void *dealer;
    Vflow__Hello hello;
    Vflow__Envelope m = hello_envelope(&hello), *got = NULL;
    struct vf_err err = {0};
    vf_wire_open(other, &options, &dealer, &err);
    vf_wire_connect(dealer, endpoint, &err);
    vf_wire_send(dealer, NULL, &m, &err);
    vf_wire_close(dealer);
    vf_wire_context_destroy(other);
    ok(vf_wire_receive(router, 5000, NULL, &got, &err) == VF_OK,
       "what a dealer says right before it leaves arrives");
    if (got)
        vflow__envelope__free_unpacked(got, NULL);
}

static void test_errors(void)
{
    struct vf_err cause, back = {0};
    vf_err_errno(&cause, VF_ERR_IO, 5, "layer %d", 3);
    Vflow__Error message;
    vf_wire_error_fill(&message, &cause);
    ok(vf_wire_error_take(&message, &back) == VF_ERR_IO && back.sys_errno == 5 &&
           strcmp(back.text, cause.text) == 0,
       "an error crosses with code, errno and text");
    message.code = 4711;
    ok(vf_wire_error_take(&message, &back) == VF_ERR_PROTOCOL && strstr(back.text, "4711"),
       "an unknown code is a protocol error: %s", back.text);
    message.code = VF_OK;
    ok(vf_wire_error_take(&message, &back) == VF_ERR_PROTOCOL, "no error is no error code");
    ok(vf_wire_bind(router, "nonsense", &back) == VF_ERR_USAGE && strstr(back.text, "nonsense"),
       "a bad endpoint is named: %s", back.text);
    struct vf_wire_options options = {.type = VF_WIRE_DEALER, .curve_server_public = "short"};
    void *socket;
    ok(vf_wire_open(context, &options, &socket, &back) == VF_ERR_USAGE && !socket,
       "a bad key is refused: %s", back.text);
}

int main(void)
{
    plan(6 + 3 + 6 * 3 + 3 + 1 + 5);
    if (!mkdtemp(directory))
        return 1;
    snprintf(endpoint, sizeof endpoint, "ipc://%s/s", directory);
    context = vf_wire_context_create(NULL);
    router = open_socket(VF_WIRE_ROUTER, NULL);
    struct vf_err err;
    if (vf_wire_bind(router, endpoint, &err) != VF_OK) {
        note("%s", err.text);
        return 1;
    }
    test_conversation();
    test_deadline();
    test_refusals();
    test_unfolding();
    test_last_words();
    test_errors();
    vf_wire_close(router);
    vf_wire_context_destroy(context);
    unlink(endpoint + 6);
    rmdir(directory);
    return 0;
}
