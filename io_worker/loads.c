/* One turn: take completions, submit pieces while there is room, then hash what has landed (the
 * drive is at work meanwhile) and announce what is whole.
 *
 * A load keeps which of its pieces have landed as bits and hashes the run of landed pieces from the
 * front.
 *
 * A read may join loads of one piece each: those behind the first come from orders that wait for
 * the records behind its own.
 *
 * When the cache grants no slot the first order stays where it is, and every turn tries again.
 */
#include "io_worker/loads_internal.h"

#include "common/base/fault.h"
#include "io_worker/neighbours.h"

#include <stdlib.h>
#include <string.h>

#define STARVED_POLL_MS 50
#define IDLE_POLL_MS    1    /* for other workers to leave the drive to speculation */
#define PREEMPTED_MAX   16u  /* loads that wait half read while more urgent ones go first */
#define JOINED_MAX      128u /* loads that share another one's read, of all reads together */

/* ---- ending a load ------------------------------------------------------------------------- */

static void forget_load(struct vf_loads *l, struct load *load)
{
    l->active_guesses -= load->order.speculative;
    l->active--;
    load->active = false;
}

enum vf_code loads_finish(struct vf_loads *l, struct load *load,
                          const struct vf_cache_failure *failure, struct vf_err *err)
{
    vf_cache_loader_count_read(l->loader, load->order.process, failure ? 0 : load->extent.bytes,
                               vf_now_ns() - load->started_ns, failure);
    enum vf_code code = vf_cache_loader_finish(l->loader, load->slot, failure, err);
    forget_load(l, load);
    return code;
}

static enum vf_code end_whole(struct vf_loads *l, struct load *load, struct vf_err *err)
{
    uint64_t found = XXH3_64bits_digest(load->hash);
    if (vf_fault("io.checksum"))
        found = ~found;
    if (found == load->extent.xxh3)
        return loads_finish(l, load, NULL, err);
    struct vf_cache_failure failure = {.code = VF_ERR_CORRUPT, .xxh3_found = found};
    return loads_finish(l, load, &failure, err);
}

/* Marks the fronts that have landed, before anything is hashed: the readers compute meanwhile. */
static enum vf_code tell_fronts(struct vf_loads *l, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (uint32_t i = 0; i < l->load_count && l->front && code == VF_OK; i++) {
        struct load *load = &l->loads[i];
        if (!load->active || load->failed || load->front_told ||
            (load->landed & l->front) != l->front)
            continue;
        load->front_told = true;
        code = vf_cache_loader_mark_front(l->loader, load->slot, err);
    }
    return code;
}

static void hash_front(struct vf_loads *l, struct load *load)
{
    const uint8_t *data = vf_expert_cache_slot_data(l->cache, load->slot);
    while (load->hashed < load->piece_count && (load->landed >> load->hashed & 1)) {
        XXH3_64bits_update(load->hash, data + piece_offset(l, load->hashed),
                           piece_bytes(l, load, load->hashed));
        load->hashed++;
    }
}

/* *ended tells whether slots or loads became free. */
static enum vf_code hash_landed(struct vf_loads *l, bool *ended, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    *ended = false;
    for (uint32_t i = 0; i < l->load_count && code == VF_OK; i++) {
        struct load *load = &l->loads[i];
        if (!load->active || load->failed)
            continue;
        hash_front(l, load);
        if (load->hashed < load->piece_count)
            continue;
        code = end_whole(l, load, err);
        *ended = true;
    }
    return code;
}

/* ---- what is next -------------------------------------------------------------------------- */

static struct load *find_load(struct vf_loads *l, struct vf_expert_ref ref)
{
    for (uint32_t i = 0; i < l->load_count; i++) {
        struct load *load = &l->loads[i];
        if (load->active && load->order.ref.layer == ref.layer &&
            load->order.ref.expert == ref.expert)
            return load;
    }
    return NULL;
}

/* Makes a load as urgent as an order that found it under way. */
static void raise_load(struct vf_loads *l, struct load *load, const struct vf_cache_order *order)
{
    bool was_guess = load->order.speculative;
    vf_order_merge(&load->order, order);
    l->active_guesses -= was_guess && !load->order.speculative;
}

static uint32_t guesses_in_flight(const struct vf_loads *l)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->depth && l->in_flight > 0; i++)
        n += l->reads[i].active && l->reads[i].load->order.speculative;
    return n;
}

/* Nothing else is queued or in flight. */
static bool drive_is_idle(struct vf_loads *l)
{
    const struct vf_cache_order *first = vf_orders_first(l->orders);
    if (l->active > l->active_guesses || (first && !first->speculative))
        return false;
    l->waits_for_idle = !l->own_drive && vf_cache_loader_others_busy(l->loader);
    return !l->waits_for_idle;
}

static bool may_go_on(struct vf_loads *l, const struct vf_cache_order *order)
{
    if (!order->speculative)
        return true;
    return guesses_in_flight(l) < vf_max_u64(1, l->depth / 2) && drive_is_idle(l);
}

/* The most urgent load that has pieces to ask for; NULL: none. */
static struct load *next_load(struct vf_loads *l)
{
    struct load *best = NULL;
    for (uint32_t i = 0; i < l->load_count; i++) {
        struct load *load = &l->loads[i];
        if (load->active && !load->failed && load->next_piece < load->piece_count &&
            (!best || vf_order_before(&load->order, &best->order)))
            best = load;
    }
    return best && may_go_on(l, &best->order) ? best : NULL;
}

static struct load *start_load(struct vf_loads *l, const struct vf_cache_order *order,
                               uint32_t slot)
{
    struct load *load = l->loads;
    while (load->active)
        load++;
    XXH3_state_t *hash = load->hash;
    *load = (struct load){
        .active = true,
        .order = *order,
        .extent = l->bank.extent(l->bank.ctx, order->ref.layer, order->ref.expert),
        .slot = slot,
        .started_ns = vf_now_ns(),
        .hash = hash,
    };
    load->piece_count = (uint32_t)vf_div_up(load->extent.bytes, l->piece_bytes);
    VF_ASSERT(load->piece_count >= 1 && load->piece_count <= VF_IO_PIECES_MAX &&
              load->extent.file < l->bank.file_count);
    XXH3_64bits_reset(hash);
    l->active++;
    l->active_guesses += order->speculative;
    return load;
}

/* Asks the cache for a slot for a waiting order; without one, starved, the order goes on waiting.
 * *begun is NULL where there is nothing to read. */
static enum vf_code begin(struct vf_loads *l, const struct vf_cache_order *waiting,
                          struct load **begun, struct vf_err *err)
{
    struct vf_cache_order order = *waiting;
    enum vf_cache_begin result;
    uint32_t slot;
    *begun = NULL;
    enum vf_code code = vf_cache_loader_begin(l->loader, &order, &result, &slot, err);
    if (code != VF_OK)
        return code;
    l->starved = result == VF_CACHE_STARVED;
    if (!l->starved)
        vf_orders_take(l->orders, order.ref);
    if (result == VF_CACHE_BEGUN)
        *begun = start_load(l, &order, slot);
    if (result == VF_CACHE_PRESENT) {
        vf_cache_loader_count_merged(l->loader);
        struct load *load = find_load(l, order.ref);
        if (load)
            raise_load(l, load, &order);
    }
    return VF_OK;
}

/* Begins loads of the records behind the read's, as long as their orders wait and slots are found,
 * and joins them to it. */
static enum vf_code join_neighbours(struct vf_loads *l, struct piece_read *r, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    struct load *last = r->load;
    while (code == VF_OK && 1 + r->read.more_count < l->join_max && !l->starved &&
           l->active + PREEMPTED_MAX < l->load_count) {
        const struct vf_cache_order *next = vf_neighbour_of(&l->bank, l->orders, &last->order);
        if (!next)
            break;
        code = begin(l, next, &last, err);
        if (code != VF_OK || !last)
            break;
        last->next_piece = 1;
        last->in_flight = 1;
        r->more[r->read.more_count++] = last;
    }
    vf_cache_loader_count_joined(l->loader, r->read.more_count);
    return code;
}

static enum vf_code submit_next_piece(struct vf_loads *l, struct load *load, struct vf_err *err)
{
    struct piece_read *r = l->reads;
    while (r->active)
        r++;
    *r = (struct piece_read){.active = true, .load = load, .piece = load->next_piece++};
    load->in_flight++;
    if (l->in_flight++ == 0)
        l->busy_since_ns = vf_now_ns();
    enum vf_code code = load->alone ? VF_OK : join_neighbours(l, r, err);
    return code == VF_OK ? loads_submit(l, r, err) : code;
}

static bool may_begin(struct vf_loads *l, const struct vf_cache_order *first,
                      const struct load *next)
{
    return first && l->active < l->load_count && may_go_on(l, first) &&
           (!next || vf_order_before(first, &next->order));
}

/* Gives up guesses that have no piece in flight: those whose time has come, or all. */
static enum vf_code drop_guesses(struct vf_loads *l, bool if_late, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (uint32_t i = 0; i < l->load_count && l->active_guesses > 0 && code == VF_OK; i++) {
        struct load *load = &l->loads[i];
        bool abandoned = false;
        if (!load->active || !load->order.speculative || load->in_flight > 0)
            continue;
        code = vf_cache_loader_abandon(l->loader, load->slot, if_late, &abandoned, err);
        if (abandoned)
            forget_load(l, load);
    }
    return code;
}

/* Submits pieces while there is room: of the loads under way, or of the first order where that is
 * more urgent than all of them. */
static enum vf_code start_reads(struct vf_loads *l, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    l->starved = false;
    l->waits_for_idle = false;
    while (code == VF_OK && l->in_flight < l->depth) {
        struct load *next = next_load(l);
        const struct vf_cache_order *first = vf_orders_first(l->orders);
        if (!l->starved && may_begin(l, first, next)) {
            uint32_t guesses = l->active_guesses;
            struct load *begun;
            code = begin(l, first, &begun, err);
            if (code == VF_OK && l->starved && guesses > 0) { /* they must not hold what it needs */
                code = drop_guesses(l, false, err);
                l->starved = l->active_guesses == guesses;
                continue;
            }
            if (code != VF_OK || !l->starved)
                continue;
        }
        if (!next)
            break;
        code = submit_next_piece(l, next, err);
    }
    return code;
}

enum vf_code vf_loads_turn(struct vf_loads *l, struct vf_err *err)
{
    enum vf_code code = loads_take_completions(l, err);
    if (code == VF_OK)
        code = drop_guesses(l, true, err);
    if (code == VF_OK)
        code = start_reads(l, err);
    bool ended = false;
    if (code == VF_OK)
        code = tell_fronts(l, err);
    if (code == VF_OK)
        code = hash_landed(l, &ended, err);
    if (code == VF_OK && ended)
        code = start_reads(l, err);
    const struct vf_cache_order *first = vf_orders_first(l->orders);
    vf_cache_loader_set_busy(l->loader,
                             l->active > l->active_guesses || (first && !first->speculative));
    return code;
}

void vf_loads_order(struct vf_loads *l, const struct vf_cache_order *order)
{
    struct load *load = find_load(l, order->ref);
    if (load)
        raise_load(l, load, order); /* and the cache is told in its turn */
    if (vf_orders_put(l->orders, order) == VF_ORDERS_MERGED)
        vf_cache_loader_count_merged(l->loader);
}

int vf_loads_wait_ms(const struct vf_loads *l)
{
    return l->waits_for_idle ? IDLE_POLL_MS : l->starved ? STARVED_POLL_MS : -1;
}

int vf_loads_fd(const struct vf_loads *l)
{
    return vf_read_engine_fd(l->engine);
}

const char *vf_loads_engine(const struct vf_loads *l)
{
    return vf_read_engine_name(l->engine);
}

/* ---- life ---------------------------------------------------------------------------------- */

static enum vf_code open_engine(struct vf_loads *l, const struct vf_loads_params *params,
                                struct vf_err *err)
{
    const struct vf_cache_geometry *g = vf_expert_cache_geometry(l->cache);
    struct vf_read_params read = {
        .paths = l->bank.files,
        .path_count = l->bank.file_count,
        .buffered = params->buffered,
        .no_uring = params->no_uring,
        .depth = l->depth,
        .throttle_bytes = params->throttle_bytes,
        .region = vf_expert_cache_slot_data(l->cache, 0),
        .slot_bytes = g->record_bytes,
        .slot_count = g->slot_count,
    };
    return vf_read_engine_create(&read, &l->engine, err);
}

/* Loads beyond one for each read in flight: the others that these may join, and as many again that
 * are hashed meanwhile. */
static uint32_t count_joined(const struct vf_loads *l)
{
    if (l->join_max == 1)
        return 0;
    return (uint32_t)vf_min_u64(JOINED_MAX, l->depth * (2 * l->join_max - 1));
}

static enum vf_code allocate(struct vf_loads *l, struct vf_err *err)
{
    l->join_max = vf_neighbours_max(&l->bank, l->piece_bytes);
    l->load_count += count_joined(l);
    l->loads = calloc(l->load_count, sizeof *l->loads);
    l->reads = calloc(l->depth, sizeof *l->reads);
    l->done = calloc(l->depth, sizeof *l->done);
    bool whole = l->loads && l->reads && l->done;
    for (uint32_t i = 0; i < l->load_count && whole; i++)
        whole = (l->loads[i].hash = XXH3_createState()) != NULL;
    if (!whole)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "I/O worker's reads: out of memory");
    return vf_orders_create(l->bank.layer_count, l->bank.expert_count, &l->orders, err);
}

/* Into pieces of about so many bytes, of which some are the front and no more. */
static void cut_records(struct vf_loads *l, uint64_t bytes)
{
    uint64_t record = l->bank.record_bytes, front = l->bank.front_bytes;
    bytes = vf_max_u64(bytes, vf_div_up(record, VF_IO_PIECES_MAX));
    l->piece_bytes = vf_round_up(bytes, VF_READ_ALIGN);
    if (front == 0 || front >= record || record <= l->piece_bytes)
        return;
    uint64_t count = vf_div_up(front, l->piece_bytes);
    uint64_t fitting = vf_round_up(vf_div_up(front, count), VF_READ_ALIGN);
    if (vf_div_up(record, fitting) <= VF_IO_PIECES_MAX)
        l->piece_bytes = fitting;
    count = vf_div_up(front, l->piece_bytes);
    if (count < vf_div_up(record, l->piece_bytes))
        l->front = (1ull << count) - 1;
}

enum vf_code vf_loads_create(const struct vf_loads_params *params, struct vf_loads **out,
                             struct vf_err *err)
{
    *out = NULL;
    VF_ASSERT(params->depth >= 1 && params->depth <= VF_READ_DEPTH_MAX);
    struct vf_loads *l = calloc(1, sizeof *l);
    if (!l)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "I/O worker's reads: out of memory");
    l->bank = *params->bank;
    l->cache = params->cache;
    l->loader = params->loader;
    l->depth = params->depth;
    l->load_count = params->depth + PREEMPTED_MAX;
    /* Stripes whose number the workers divide are read by one worker each. */
    l->own_drive = l->bank.file_count > 1 &&
                   l->bank.file_count % vf_expert_cache_geometry(l->cache)->io_worker_count == 0;
    cut_records(l, params->piece_bytes ? params->piece_bytes : VF_IO_PIECE_DEFAULT);
    enum vf_code code = allocate(l, err);
    if (code == VF_OK)
        code = open_engine(l, params, err);
    if (code != VF_OK)
        vf_loads_destroy(l);
    else
        *out = l;
    return code;
}

void vf_loads_destroy(struct vf_loads *l)
{
    if (!l)
        return;
    vf_read_engine_destroy(l->engine);
    vf_orders_destroy(l->orders);
    for (uint32_t i = 0; i < l->load_count && l->loads; i++)
        XXH3_freeState(l->loads[i].hash);
    free(l->loads);
    free(l->reads);
    free(l->done);
    free(l);
}
