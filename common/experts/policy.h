/* Which cached expert to give up: the one whose next use is least likely, seen from where the model
 * is in its cycle of layers. Pure: no clock, no locks, no I/O. The expert cache and its offline
 * replay run this same code.
 *
 * A layer is visited once a step; a visit names the experts that the step uses there. Of each
 * expert the policy keeps uses that decay with the visits of its layer, over four spans (recency to
 * frequency), and from them the chance that the next visit uses it, by a logistic regression. The
 * regression goes on learning from every visit, on the cached experts, whether a model's tokens
 * resemble their neighbours or the model's favourites.
 *
 * A slot has a rent: what a slot could earn elsewhere in one cycle of the layers, learned from the
 * chances of the experts given up. Of two experts with the same chance the one whose layer comes up
 * later goes first, since it would pay rent for longer; the layer just visited is the furthest.
 * Every record of a model has the same size, so what a miss costs is the same for all.
 *
 * Candidates are the experts that may be given up now: the caller adds and removes them as they
 * become free of pins, reads and orders. They are indexed by layer, so that a victim costs
 * O(layers + log experts) and a visit O(candidates of the layer), at most VF_POLICY_RESCORE_MAX.
 *
 * The state is one block of memory without pointers, zeroed at first, that may lie in shared
 * memory. What is read from there is checked; after vf_policy_is_broken the caller resets and adds
 * its candidates again. Experts are named by key, layer * expert_count + expert.
 */
#ifndef VF_COMMON_EXPERTS_POLICY_H
#define VF_COMMON_EXPERTS_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#define VF_POLICY_KEYS_MAX (1u << 26) /* layers * experts */
#define VF_POLICY_RESCORE_MAX                                                                      \
    1024u /* a visit's work; more candidates take turns over the visits                            \
           */

struct vf_policy { /* a handle: plain value, borrows the block */
    uint32_t layer_count, expert_count;
    struct vf_policy_head *head;
    struct vf_policy_layer *layers; /* [layer_count] */
    struct vf_policy_key *keys;     /* [layer_count * expert_count] */
    uint32_t *candidates;           /* [layer_count * expert_count], a heap per layer */
    bool broken;
};

/* Bytes of the block: a multiple of 64. layers * experts is 1 to VF_POLICY_KEYS_MAX. */
uint64_t vf_policy_bytes(uint32_t layer_count, uint32_t expert_count);
/* block: vf_policy_bytes, 64-byte aligned, zeroed when nobody used it yet. */
struct vf_policy vf_policy_open(void *block, uint32_t layer_count, uint32_t expert_count);

/* A step uses these experts of a layer, each named once. */
void vf_policy_visit(struct vf_policy *p, uint32_t layer, const uint32_t *experts, uint32_t n);

/* Adding a candidate twice, or removing what is none, changes nothing. */
void vf_policy_add(struct vf_policy *p, uint32_t key);
void vf_policy_remove(struct vf_policy *p, uint32_t key);
bool vf_policy_has(const struct vf_policy *p, uint32_t key);
/* The candidate to give up; it stays one until removed. False: there is none. */
bool vf_policy_victim(struct vf_policy *p, uint32_t *key);
/* The victim is being given up: the rent learns from its chance. */
void vf_policy_note_eviction(struct vf_policy *p, uint32_t key);

/* Chance in [0, 1] that the next visit of its layer uses the expert. */
float vf_policy_chance(const struct vf_policy *p, uint32_t key);
/* How much worth keeping, as victims are chosen: chance less the rent until the next visit. */
float vf_policy_worth(const struct vf_policy *p, uint32_t key);

bool vf_policy_is_broken(const struct vf_policy *p);
/* No candidates any more; what was learned stays. */
void vf_policy_clear_candidates(struct vf_policy *p);

#endif
