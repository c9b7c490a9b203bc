/* Statistics of speculative prefetch on their way from the workers and the cache to the totals. */
#include "coordinator/engine/internal.h"

void engine_take_speculation(const Vflow__SpeculationStats *s, struct vf_engine_speculation *out)
{
    *out = (struct vf_engine_speculation){0};
    if (!s)
        return;
    *out = (struct vf_engine_speculation){
        .ahead = {{s->guessed, s->right, s->chosen}, {s->guessed_two, s->right_two, s->chosen_two}},
        .steps = s->steps,
        .steps_guessed = s->steps_guessed,
        .guess_ns = s->guess_ns,
        .probes = s->probes,
        .gain_sum = s->probes > 0 ? s->gain : 0,
        .workers_probed = s->probes > 0,
        .workers = 1,
        .workers_on = s->on,
    };
}

void engine_add_speculation(const struct vf_engine_speculation *s,
                            struct vf_engine_speculation *sum)
{
    for (uint32_t i = 0; i < VF_ENGINE_GUESS_REACH; i++) {
        sum->ahead[i].guessed += s->ahead[i].guessed;
        sum->ahead[i].right += s->ahead[i].right;
        sum->ahead[i].chosen += s->ahead[i].chosen;
    }
    sum->steps += s->steps;
    sum->steps_guessed += s->steps_guessed;
    sum->guess_ns += s->guess_ns;
    sum->probes += s->probes;
    sum->gain_sum += s->gain_sum;
    sum->workers_probed += s->workers_probed;
    sum->workers += s->workers;
    sum->workers_on += s->workers_on;
}

void engine_count_guesses(struct vf_engine *e, struct vf_engine_speculation *out)
{
    if (!e->cache)
        return;
    struct vf_cache_totals s = vf_expert_cache_totals(e->cache);
    out->used = s.guessed_used;
    out->wasted = s.guessed_wasted;
    out->bytes_wasted = s.guessed_wasted * vf_expert_cache_geometry(e->cache)->record_bytes;
}
