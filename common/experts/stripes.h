/* An expert bank in several files, so that several drives read for one token (docs/FORMAT.md, "The
 * bank in stripes").
 *
 * Stripe i of n holds a copy of the records of the experts with (layer * experts + expert) % n ==
 * i, one after another behind a header that names the model by its fingerprint. Checksums stay in
 * the model file. Stripes are opened once, read-only, and closed again: whoever reads records opens
 * the paths of the bank itself.
 */
#ifndef VF_COMMON_EXPERTS_STRIPES_H
#define VF_COMMON_EXPERTS_STRIPES_H

#include "common/experts/bank.h"

#include <signal.h>

struct vf_bank_stripes;

/* Where the stripes of a model lie in dirs ("DIR,DIR,..."): DIR/NAME.bank-I-of-N, the I-th in the
 * I-th directory. paths[0..*count) are the caller's to free. VF_ERR_USAGE for an empty name or more
 * than VF_BANK_FILES_MAX. */
enum vf_code vf_bank_stripe_paths(const char *model_path, const char *dirs,
                                  char *paths[VF_BANK_FILES_MAX], uint32_t *count,
                                  struct vf_err *err);

/* Checks that the stripes are whole and of this model. Borrows f; copies paths. VF_ERR_CORRUPT
 * names file and field. */
enum vf_code vf_bank_stripes_open(const struct vf_model_file *f, const char *const *paths,
                                  uint32_t count, struct vf_bank_stripes **out, struct vf_err *err);
void vf_bank_stripes_close(struct vf_bank_stripes *s); /* NULL is fine */

/* The bank of an open model: in its stripes, which must outlive it, or with s NULL in the file. */
enum vf_code vf_expert_bank_of(const struct vf_model_file *f, const struct vf_bank_stripes *s,
                               struct vf_expert_bank *out, struct vf_err *err);

/* Writes the stripes of a model, each beside its name and renamed when whole; every record's
 * checksum is compared on the way. *cancel ends it between two records with VF_ERR_CANCELLED. */
enum vf_code vf_bank_stripes_write(const struct vf_model_file *f, const char *const *paths,
                                   uint32_t count, const volatile sig_atomic_t *cancel,
                                   struct vf_err *err);

#endif
