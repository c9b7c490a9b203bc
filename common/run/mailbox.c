/* Layout: one header page, one control block per edge, then the buffers edge by edge.
 *
 * `posted` counts buffers the producer has filled, `released` those the reader is done with; each
 * is written by one process and is the futex word of the other. posted is stored with release order
 * and pairs with the reader's acquire load (buffer contents, step_id, failed); released likewise
 * pairs with the producer's load before it overwrites a buffer.
 */
#include "common/run/mailbox.h"

#include "common/base/clock.h"
#include "common/base/util.h"
#include "common/run/shm.h"

#include <immintrin.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC       0x584f424c49414d56ull /* "VMAILBOX" */
#define VERSION     2u
#define HEADER_SIZE 4096u
/* About 10 us: the other worker of a pipeline is usually far longer at work than that. */
#define SPIN_COUNT 400

struct header {
    uint64_t magic;
    uint32_t version, edge_count, columns_max, width;
};

struct control {
    _Alignas(64) _Atomic uint32_t posted; /* producer's line */
    uint32_t failed[VF_MAILBOX_DEPTH];
    uint64_t step_id[VF_MAILBOX_DEPTH];
    _Alignas(64) _Atomic uint32_t released; /* reader's line */
};
_Static_assert(sizeof(struct header) <= HEADER_SIZE, "the header fits its page");
_Static_assert(sizeof(struct control) == 128, "a control block is two cache lines");

struct vf_mailboxes {
    struct vf_shm shm;
    const struct vf_run_state *state; /* NULL: no end */
    struct header *header;
    struct control *controls;
    float *buffers;
    uint32_t edge_count;
    uint64_t buffer_floats;
};

static enum vf_code total_bytes(uint32_t edge_count, uint32_t columns_max, uint32_t width,
                                uint64_t *buffers_at, uint64_t *bytes, struct vf_err *err)
{
    uint64_t buffer = (uint64_t)columns_max * width, all;
    *buffers_at = vf_round_up(HEADER_SIZE + (uint64_t)edge_count * sizeof(struct control), 4096);
    if (!vf_mul_u64(buffer * sizeof(float), (uint64_t)edge_count * VF_MAILBOX_DEPTH, &all) ||
        !vf_add_u64(all, *buffers_at, bytes) || *bytes > (uint64_t)1 << 46)
        return vf_err_set(err, VF_ERR_LIMIT, "mailboxes of %u edges with %u columns are too large",
                          edge_count, columns_max);
    return VF_OK;
}

enum vf_code vf_mailboxes_bytes(uint32_t edge_count, uint32_t columns_max, uint32_t width,
                                uint64_t *bytes, struct vf_err *err)
{
    uint64_t buffers_at;
    *bytes = 0;
    if (edge_count == 0)
        return VF_OK;
    return total_bytes(edge_count, columns_max, width, &buffers_at, bytes, err);
}

static void set_view(struct vf_mailboxes *m, uint32_t edge_count, uint32_t columns_max,
                     uint32_t width, uint64_t buffers_at)
{
    uint8_t *base = m->shm.base;
    m->header = (struct header *)base;
    m->controls = (struct control *)(base + HEADER_SIZE);
    m->buffers = (float *)(base + buffers_at);
    m->edge_count = edge_count;
    m->buffer_floats = (uint64_t)columns_max * width;
}

/* Creates or opens the object at the size the plan gives it, and sets the view. */
static enum vf_code map_object(const char *shm_name, bool create, uint32_t edge_count,
                               uint32_t columns_max, uint32_t width,
                               const struct vf_run_state *state, struct vf_mailboxes **out,
                               struct vf_err *err)
{
    VF_ASSERT(edge_count > 0);
    uint64_t buffers_at, bytes = 0;
    enum vf_code code = total_bytes(edge_count, columns_max, width, &buffers_at, &bytes, err);
    if (code != VF_OK)
        return code;
    struct vf_mailboxes *m = calloc(1, sizeof *m);
    if (!m)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for mailboxes");
    code = create ? vf_shm_create(shm_name, bytes, &m->shm, err)
                  : vf_shm_open(shm_name, bytes, &m->shm, err);
    if (create && code == VF_ERR_NO_MEMORY)
        vf_err_append(err, "; a smaller --batch or --prefill-chunk, fewer --stage-workers or a "
                           "larger /dev/shm would help");
    if (code != VF_OK) {
        free(m);
        return code;
    }
    m->state = state;
    set_view(m, edge_count, columns_max, width, buffers_at);
    *out = m;
    return VF_OK;
}

enum vf_code vf_mailboxes_create(const char *shm_name, uint32_t edge_count, uint32_t columns_max,
                                 uint32_t width, const struct vf_run_state *state,
                                 struct vf_mailboxes **out, struct vf_err *err)
{
    enum vf_code code = map_object(shm_name, true, edge_count, columns_max, width, state, out, err);
    if (code != VF_OK)
        return code;
    struct header *h = (*out)->header;
    h->version = VERSION;
    h->edge_count = edge_count;
    h->columns_max = columns_max;
    h->width = width;
    h->magic = MAGIC;
    return VF_OK;
}

enum vf_code vf_mailboxes_open(const char *shm_name, uint32_t edge_count, uint32_t columns_max,
                               uint32_t width, const struct vf_run_state *state,
                               struct vf_mailboxes **out, struct vf_err *err)
{
    enum vf_code code =
        map_object(shm_name, false, edge_count, columns_max, width, state, out, err);
    if (code != VF_OK)
        return code;
    const struct header *h = (*out)->header;
    if (h->magic == MAGIC && h->version == VERSION && h->edge_count == edge_count &&
        h->columns_max == columns_max && h->width == width)
        return VF_OK;
    code = vf_err_set(err, VF_ERR_CORRUPT,
                      "%s: %u edges of %u x %u found, this plan has %u edges of %u x %u", shm_name,
                      h->edge_count, h->columns_max, h->width, edge_count, columns_max, width);
    vf_mailboxes_close(*out);
    *out = NULL;
    return code;
}

void vf_mailboxes_close(struct vf_mailboxes *m)
{
    if (!m)
        return;
    vf_shm_close(&m->shm);
    free(m);
}

static float *buffer_of(const struct vf_mailboxes *m, uint32_t edge, uint32_t count)
{
    return m->buffers +
           ((uint64_t)edge * VF_MAILBOX_DEPTH + count % VF_MAILBOX_DEPTH) * m->buffer_floats;
}

/* Waits until *word differs from value. */
static enum vf_code wait_change(struct vf_mailboxes *m, _Atomic uint32_t *word, uint32_t value,
                                uint64_t deadline_ns, struct vf_err *err)
{
    for (int i = 0;; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != value)
            return VF_OK;
        enum vf_code code = vf_run_state_check(m->state, err);
        if (code != VF_OK)
            return code;
        if (i < SPIN_COUNT) {
            _mm_pause();
            continue;
        }
        if (vf_now_ns() >= deadline_ns)
            return vf_err_set(err, VF_ERR_TIMEOUT, "nothing came before the deadline");
        /* Slices, so that an end between the check and the sleep is noticed soon. */
        uint64_t slice = vf_now_ns() + VF_MS(100);
        vf_futex_wait(word, value, slice < deadline_ns ? slice : deadline_ns);
    }
}

enum vf_code vf_mailbox_claim(struct vf_mailboxes *m, uint32_t edge, uint64_t deadline_ns,
                              float **buffer, struct vf_err *err)
{
    VF_ASSERT(edge < m->edge_count);
    struct control *c = &m->controls[edge];
    uint32_t posted = atomic_load_explicit(&c->posted, memory_order_relaxed);
    for (;;) {
        uint32_t released = atomic_load_explicit(&c->released, memory_order_acquire);
        if (posted - released < VF_MAILBOX_DEPTH)
            break;
        enum vf_code code = wait_change(m, &c->released, released, deadline_ns, err);
        if (code != VF_OK)
            return code;
    }
    *buffer = buffer_of(m, edge, posted);
    return VF_OK;
}

void vf_mailbox_post(struct vf_mailboxes *m, uint32_t edge, uint64_t step_id, bool failed)
{
    struct control *c = &m->controls[edge];
    uint32_t posted = atomic_load_explicit(&c->posted, memory_order_relaxed);
    c->step_id[posted % VF_MAILBOX_DEPTH] = step_id;
    c->failed[posted % VF_MAILBOX_DEPTH] = failed;
    atomic_store_explicit(&c->posted, posted + 1, memory_order_release);
    vf_futex_wake_all(&c->posted);
}

enum vf_code vf_mailbox_take(struct vf_mailboxes *m, uint32_t edge, uint64_t step_id,
                             uint64_t deadline_ns, const float **buffer, bool *failed,
                             struct vf_err *err)
{
    VF_ASSERT(edge < m->edge_count);
    struct control *c = &m->controls[edge];
    for (;;) {
        uint32_t released = atomic_load_explicit(&c->released, memory_order_relaxed);
        if (atomic_load_explicit(&c->posted, memory_order_acquire) == released) {
            enum vf_code code = wait_change(m, &c->posted, released, deadline_ns, err);
            if (code != VF_OK)
                return code;
            continue;
        }
        uint64_t found = c->step_id[released % VF_MAILBOX_DEPTH];
        if (found < step_id) { /* left over from a step whose reader gave up waiting */
            vf_mailbox_release(m, edge);
            continue;
        }
        if (found > step_id)
            return vf_err_set(err, VF_ERR_PROTOCOL, "step %llu found, step %llu expected",
                              (unsigned long long)found, (unsigned long long)step_id);
        *failed = c->failed[released % VF_MAILBOX_DEPTH] != 0;
        *buffer = buffer_of(m, edge, released);
        return VF_OK;
    }
}

void vf_mailbox_release(struct vf_mailboxes *m, uint32_t edge)
{
    struct control *c = &m->controls[edge];
    uint32_t released = atomic_load_explicit(&c->released, memory_order_relaxed);
    atomic_store_explicit(&c->released, released + 1, memory_order_release);
    vf_futex_wake_all(&c->released);
}

void vf_mailboxes_wake(struct vf_mailboxes *m)
{
    for (uint32_t e = 0; m && e < m->edge_count; e++) {
        vf_futex_wake_all(&m->controls[e].posted);
        vf_futex_wake_all(&m->controls[e].released);
    }
}
