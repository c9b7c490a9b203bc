/* Where the executor gets expert weights from: resident in the mapped file, or streamed through
 * the shared expert cache by the I/O workers. One interface, so the executor has one path.
 *
 * Used by one thread of one stage worker at a time.
 */
#ifndef VF_STAGE_WORKER_EXPERT_SOURCE_H
#define VF_STAGE_WORKER_EXPERT_SOURCE_H

#include "common/experts/bank.h"

#include <stdbool.h>
#include <stdint.h>

struct vf_expert_stats {
    uint64_t wanted;     /* experts asked of the source by acquire, once per (step, expert) */
    uint64_t hits;       /* of these, ready at once */
    uint64_t late;       /* ordered earlier, but still loading when wanted */
    uint64_t demand;     /* not ordered or evicted: read on demand */
    uint64_t early;      /* of late and demand, got after their front was taken */
    uint64_t bytes_read; /* by the I/O workers, for this source */
    uint64_t stall_ns;   /* time acquire waited */
};

enum vf_fetch_urgency {
    VF_FETCH_SCHEDULED,   /* the step will use them: all that it uses of one layer, each once */
    VF_FETCH_SPECULATIVE, /* a guess: only an otherwise idle drive reads it, into a slot that nobody
                             has a better claim to, and no longer than until the deadline */
};

struct vf_expert_source;
struct vf_expert_source_ops {
    /* Orders experts to be loaded; deadline ranks orders: lower is needed sooner. Returns at
     * once. A guess that comes true is ordered again as scheduled, or acquired. Resident sources do
     * nothing. */
    void (*fetch)(struct vf_expert_source *s, const struct vf_expert_ref *refs, uint32_t n,
                  uint64_t deadline, enum vf_fetch_urgency urgency);
    /* Pins whatever of refs[0..n) (n >= 1) is ready and tells whose front has landed, waiting until
     * there is one of either. got[i] is the mapped record or NULL. fronts[i], zero in the first
     * call for an expert, is kept by the caller: for one that isn't got, data is set where the
     * front of a load has landed that wasn't told before; for one that is got, load stays if it is
     * the record's and becomes 0 if the record was read again. fronts NULL: only what is ready
     * counts. Everything missing is ordered as demand. Fails with VF_ERR_IO naming layer, expert,
     * file and offset, VF_ERR_PEER_LOST, VF_ERR_TIMEOUT. */
    enum vf_code (*acquire)(struct vf_expert_source *s, const struct vf_expert_ref *refs,
                            uint32_t n, uint64_t deadline, const uint8_t **got,
                            struct vf_expert_front *fronts, struct vf_err *err);
    /* Unpins every refs[i] with got[i] != NULL. */
    void (*release)(struct vf_expert_source *s, const struct vf_expert_ref *refs, uint32_t n,
                    const uint8_t *const *got);
    /* Compares the experts of a layer with their checksums now rather than when they are first
     * acquired; one that fails is told then. NULL: they are compared as they are read. */
    void (*verify)(struct vf_expert_source *s, uint32_t layer);
    void (*stats)(const struct vf_expert_source *s, struct vf_expert_stats *out);
    void (*destroy)(struct vf_expert_source *s);
};
struct vf_expert_source {
    const struct vf_expert_source_ops *ops;
};

/* Experts straight from the mapped file; verifies each one's checksum the first time. */
enum vf_code vf_expert_source_resident(const struct vf_model_file *f, struct vf_expert_source **out,
                                       struct vf_err *err);

#endif
