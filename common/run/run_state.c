#include "common/run/run_state.h"

#include "common/run/shm.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define MAGIC   0x45544154534e5552ull /* "RUNSTATE" */
#define VERSION 2u

struct page {
    uint64_t magic;
    uint32_t version;
    _Atomic uint32_t ended;           /* set once; release, paired with acquire in check */
    _Atomic uint64_t to_load, loaded; /* bytes; relaxed: only shown */
};
_Static_assert(sizeof(struct page) <= VF_RUN_STATE_BYTES, "the state fits its page");

struct vf_run_state {
    struct vf_shm shm;
    struct page *page;
};

static enum vf_code map_object(const char *shm_name, bool create, struct vf_run_state **out,
                               struct vf_err *err)
{
    struct vf_run_state *s = calloc(1, sizeof *s);
    if (!s)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for the run's state");
    enum vf_code code = create ? vf_shm_create(shm_name, VF_RUN_STATE_BYTES, &s->shm, err)
                               : vf_shm_open(shm_name, VF_RUN_STATE_BYTES, &s->shm, err);
    if (code != VF_OK) {
        free(s);
        return code;
    }
    s->page = s->shm.base;
    *out = s;
    return VF_OK;
}

enum vf_code vf_run_state_create(const char *shm_name, struct vf_run_state **out,
                                 struct vf_err *err)
{
    enum vf_code code = map_object(shm_name, true, out, err);
    if (code != VF_OK)
        return code;
    (*out)->page->version = VERSION;
    (*out)->page->magic = MAGIC;
    return VF_OK;
}

enum vf_code vf_run_state_open(const char *shm_name, struct vf_run_state **out, struct vf_err *err)
{
    enum vf_code code = map_object(shm_name, false, out, err);
    if (code != VF_OK)
        return code;
    const struct page *page = (*out)->page;
    if (page->magic == MAGIC && page->version == VERSION)
        return VF_OK;
    code = vf_err_set(err, VF_ERR_CORRUPT, "%s: this isn't a run's state of version %u", shm_name,
                      VERSION);
    vf_run_state_close(*out);
    *out = NULL;
    return code;
}

void vf_run_state_close(struct vf_run_state *s)
{
    if (!s)
        return;
    vf_shm_close(&s->shm);
    free(s);
}

void vf_run_state_end(struct vf_run_state *s)
{
    atomic_store_explicit(&s->page->ended, 1, memory_order_release);
}

enum vf_code vf_run_state_check(const struct vf_run_state *s, struct vf_err *err)
{
    if (!s || !atomic_load_explicit(&s->page->ended, memory_order_acquire))
        return VF_OK;
    return vf_err_set(err, VF_ERR_PEER_LOST, "the run was given up");
}

void vf_run_state_expect(struct vf_run_state *s, uint64_t bytes)
{
    if (s)
        atomic_fetch_add_explicit(&s->page->to_load, bytes, memory_order_relaxed);
}

void vf_run_state_add_loaded(struct vf_run_state *s, uint64_t bytes)
{
    if (s)
        atomic_fetch_add_explicit(&s->page->loaded, bytes, memory_order_relaxed);
}

void vf_run_state_loaded(const struct vf_run_state *s, uint64_t *done, uint64_t *total)
{
    *done = s ? atomic_load_explicit(&s->page->loaded, memory_order_relaxed) : 0;
    *total = s ? atomic_load_explicit(&s->page->to_load, memory_order_relaxed) : 0;
}
