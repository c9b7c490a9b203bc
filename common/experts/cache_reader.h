/* The reading side of the expert cache: a stage worker orders experts, pins what is ready, and
 * waits for the rest.
 *
 * An expert is missing; ordered, once somebody marked it here and sent the order to its I/O worker;
 * loading; ready, or failed. Pins hold a ready one in its slot; orders protect one that is loading
 * or ready until its first use (cache.h says against whom).
 *
 * One thread uses a reader. Every call but the two of waiting takes the table's mutex and fails as
 * cache.h says.
 */
#ifndef VF_COMMON_EXPERTS_CACHE_READER_H
#define VF_COMMON_EXPERTS_CACHE_READER_H

#include "common/experts/cache.h"

struct vf_cache_reader;

/* For the process of an index, which one process at a time may use; gives back what an earlier one
 * of it pinned and ordered. The cache is borrowed. VF_ERR_LIMIT: process is too large. */
enum vf_code vf_cache_reader_open(struct vf_expert_cache *c, uint32_t process,
                                  struct vf_cache_waker waker, struct vf_cache_reader **out,
                                  struct vf_err *err);
/* Gives back what is still pinned and ordered. NULL is fine. */
void vf_cache_reader_close(struct vf_cache_reader *r);

enum vf_cache_found {
    VF_CACHE_MISSING, /* neither in a slot nor ordered */
    VF_CACHE_ORDERED, /* ordered, no slot yet */
    VF_CACHE_LOADING,
    VF_CACHE_READY,
    VF_CACHE_FAILED, /* its read failed; told once, the slot is free again */
};
/* A routing decision: a step uses these experts of a layer, each named once. What the choice of
 * victims learns from; called before their order. */
enum vf_code vf_cache_reader_visit(struct vf_cache_reader *r, uint32_t layer,
                                   const uint32_t *experts, uint32_t n, struct vf_err *err);
/* For orders about to be sent: protects every ref that has a slot until deadline (not for a
 * speculative one), marks the others as ordered, and tells in found[n] (MISSING: this order is the
 * first). */
enum vf_code vf_cache_reader_order(struct vf_cache_reader *r, const struct vf_expert_ref *refs,
                                   uint32_t n, uint64_t deadline, bool speculative,
                                   enum vf_cache_found *found, struct vf_err *err);
/* Pins every ref that is ready: found[i] READY, data[i] set; a ref given twice is pinned twice. Of
 * the others, data[i] is NULL; those loading are marked as waited for, so that a failure is kept
 * for this process, those without a slot as ordered (the caller sends a demand); FAILED fills
 * failures[i]. landed[i] has the number of a ready ref's load, and of a loading one whose front has
 * landed that and where; zero for others; landed may be NULL. Also tells the cache that the process
 * has come to deadline, which may free what it ordered for earlier: starved I/O workers are woken.
 */
enum vf_code vf_cache_reader_pin(struct vf_cache_reader *r, const struct vf_expert_ref *refs,
                                 uint32_t n, uint64_t deadline, enum vf_cache_found *found,
                                 const uint8_t **data, struct vf_expert_front *landed,
                                 struct vf_cache_failure *failures, struct vf_err *err);
/* Undoes pins: data[i] as vf_cache_reader_pin gave it, NULL is skipped. Wakes I/O workers that wait
 * for a slot. VF_ERR_INTERNAL names a slot on which this process has no pin; the others are given
 * back. */
enum vf_code vf_cache_reader_unpin(struct vf_cache_reader *r, const uint8_t *const *data,
                                   uint32_t n, struct vf_err *err);
/* To wait for "some slot became ready or failed, or a front that somebody waits for has landed":
 * take the count, look (pin), then wait for the count to move on. VF_OK also without a reason,
 * VF_ERR_TIMEOUT after deadline_ns. */
uint32_t vf_cache_reader_event_count(const struct vf_cache_reader *r);
enum vf_code vf_cache_reader_wait(struct vf_cache_reader *r, uint32_t event_count,
                                  uint64_t deadline_ns);

#endif
