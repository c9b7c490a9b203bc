/* The stripes' header, and the arithmetic that places a record: nothing else is stored. */
#include "common/experts/stripes.h"

#include "common/base/out_file.h"
#include "common/base/progress.h"
#include "common/base/util.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define STRIPE_VERSION 1u
#define HEADER_BYTES   4096u

static const char stripe_magic[8] = "VFBANK\r\n";

struct __attribute__((packed)) disk_stripe {
    char magic[8];
    uint32_t version, header_bytes;
    uint64_t fingerprint; /* of the model file */
    uint32_t stripe, stripe_count;
    uint32_t layer_count, expert_count; /* of the model */
    uint64_t record_bytes;
    uint64_t record_count; /* of this stripe */
    uint64_t file_bytes;
    uint8_t reserved[4024];
    uint64_t xxh3; /* of the bytes before it */
};

_Static_assert(sizeof(struct disk_stripe) == HEADER_BYTES, "header");
_Static_assert(offsetof(struct disk_stripe, fingerprint) == 16, "fingerprint");
_Static_assert(offsetof(struct disk_stripe, stripe) == 24, "stripe");
_Static_assert(offsetof(struct disk_stripe, layer_count) == 32, "layer_count");
_Static_assert(offsetof(struct disk_stripe, record_bytes) == 40, "record_bytes");
_Static_assert(offsetof(struct disk_stripe, file_bytes) == 56, "file_bytes");
_Static_assert(offsetof(struct disk_stripe, xxh3) == 4088, "xxh3");

struct vf_bank_stripes {
    const struct vf_model_file *file;
    uint32_t count;
    uint64_t record_bytes;
    char *paths[VF_BANK_FILES_MAX];
};

/* ---- names --------------------------------------------------------------------------------- */

static char *stripe_path(const char *model_path, const char *dir, int dir_length, uint32_t i,
                         uint32_t count)
{
    const char *slash = strrchr(model_path, '/');
    char *path = NULL;
    if (asprintf(&path, "%.*s/%s.bank-%u-of-%u", dir_length, dir, slash ? slash + 1 : model_path, i,
                 count) < 0)
        return NULL;
    return path;
}

enum vf_code vf_bank_stripe_paths(const char *model_path, const char *dirs,
                                  char *paths[VF_BANK_FILES_MAX], uint32_t *count,
                                  struct vf_err *err)
{
    uint32_t n = 1, made = 0;
    *count = 0;
    for (const char *c = dirs; *c; c++)
        n += *c == ',';
    if (n > VF_BANK_FILES_MAX)
        return vf_err_set(err, VF_ERR_USAGE, "%u directories; allowed are 1 to %u", n,
                          VF_BANK_FILES_MAX);
    enum vf_code code = VF_OK;
    for (const char *dir = dirs; made < n && code == VF_OK; dir += strcspn(dir, ",") + 1) {
        int length = (int)strcspn(dir, ",");
        if (length == 0)
            code = vf_err_set(err, VF_ERR_USAGE, "\"%s\": a directory's name is empty", dirs);
        else if (!(paths[made] = stripe_path(model_path, dir, length, made, n)))
            code = vf_err_set(err, VF_ERR_NO_MEMORY, "%s: out of memory", dirs);
        else
            made++;
    }
    for (uint32_t i = 0; i < made && code != VF_OK; i++)
        free(paths[i]);
    *count = code == VF_OK ? n : 0;
    return code;
}

/* ---- the header ---------------------------------------------------------------------------- */

static void fill_header(const struct vf_model_file *f, uint32_t stripe, uint32_t count,
                        struct disk_stripe *out)
{
    const struct vf_config *config = vf_model_file_config(f);
    uint64_t keys = (uint64_t)config->layer_count * config->expert_count;
    memset(out, 0, sizeof *out);
    memcpy(out->magic, stripe_magic, sizeof out->magic);
    out->version = STRIPE_VERSION;
    out->header_bytes = HEADER_BYTES;
    out->fingerprint = vf_model_file_fingerprint(f);
    out->stripe = stripe;
    out->stripe_count = count;
    out->layer_count = config->layer_count;
    out->expert_count = config->expert_count;
    out->record_bytes = vf_model_file_expert_layout(f).bytes;
    out->record_count = keys / count + (stripe < keys % count);
    out->file_bytes = HEADER_BYTES + out->record_count * out->record_bytes;
    out->xxh3 = XXH3_64bits(out, offsetof(struct disk_stripe, xxh3));
}

static enum vf_code bad(const char *path, struct vf_err *err, const char *field, uint64_t found,
                        uint64_t allowed)
{
    return vf_err_set(err, VF_ERR_CORRUPT, "%s: %s is %" PRIu64 ", it should be %" PRIu64, path,
                      field, found, allowed);
}

/* Every byte of the header follows from the model, so what differs is named, and nothing is used.
 */
static enum vf_code check_header(const struct disk_stripe *h, const struct disk_stripe *want,
                                 uint64_t file_bytes, const char *path, struct vf_err *err)
{
    if (memcmp(h->magic, want->magic, sizeof h->magic) != 0)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: not a stripe of an expert bank", path);
    if (h->version != want->version)
        return vf_err_set(err, VF_ERR_UNSUPPORTED, "%s: version %u found, %u is known", path,
                          h->version, want->version);
    if (h->fingerprint != want->fingerprint)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: it belongs to another model: fingerprint %016" PRIx64
                          " found, the model has %016" PRIx64
                          "; vflow-convert MODEL --split-bank makes new ones",
                          path, h->fingerprint, want->fingerprint);
    if (h->stripe_count != want->stripe_count)
        return bad(path, err, "stripe_count", h->stripe_count, want->stripe_count);
    if (h->stripe != want->stripe)
        return bad(path, err, "stripe", h->stripe, want->stripe);
    if (memcmp(h, want, sizeof *h) != 0)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: its header is damaged", path);
    if (file_bytes != want->file_bytes)
        return bad(path, err, "the file's size", file_bytes, want->file_bytes);
    return VF_OK;
}

static enum vf_code check_stripe(const struct vf_model_file *f, const char *path, uint32_t stripe,
                                 uint32_t count, struct vf_err *err)
{
    struct disk_stripe found, want;
    uint64_t file_bytes;
    int fd;
    enum vf_code code = vf_open_input(path, &fd, &file_bytes, err);
    if (code == VF_ERR_NOT_FOUND)
        vf_err_append(err, "; the directories are those of vflow-convert --split-bank, in its "
                           "order");
    if (code != VF_OK)
        return code;
    fill_header(f, stripe, count, &want);
    if (file_bytes < HEADER_BYTES)
        code = bad(path, err, "the file's size", file_bytes, want.file_bytes);
    if (code == VF_OK)
        code = vf_pread_full(fd, &found, sizeof found, 0, path, err);
    if (code == VF_OK)
        code = check_header(&found, &want, file_bytes, path, err);
    close(fd);
    return code;
}

/* ---- reading ------------------------------------------------------------------------------- */

enum vf_code vf_bank_stripes_open(const struct vf_model_file *f, const char *const *paths,
                                  uint32_t count, struct vf_bank_stripes **out, struct vf_err *err)
{
    *out = NULL;
    if (count == 0 || count > VF_BANK_FILES_MAX)
        return vf_err_set(err, VF_ERR_USAGE, "an expert bank of %u files; allowed are 1 to %u",
                          count, VF_BANK_FILES_MAX);
    if (vf_model_file_config(f)->expert_count == 0)
        return vf_err_set(err, VF_ERR_UNSUPPORTED, "%s: the model has no experts",
                          vf_model_file_path(f));
    struct vf_bank_stripes *s = calloc(1, sizeof *s);
    if (!s)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "expert bank: out of memory");
    s->file = f;
    s->record_bytes = vf_model_file_expert_layout(f).bytes;
    enum vf_code code = VF_OK;
    for (; s->count < count && code == VF_OK; s->count++) {
        code = check_stripe(f, paths[s->count], s->count, count, err);
        s->paths[s->count] = code == VF_OK ? strdup(paths[s->count]) : NULL;
        if (code == VF_OK && !s->paths[s->count])
            code = vf_err_set(err, VF_ERR_NO_MEMORY, "expert bank: out of memory");
    }
    if (code != VF_OK)
        vf_bank_stripes_close(s);
    else
        *out = s;
    return code;
}

void vf_bank_stripes_close(struct vf_bank_stripes *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->count; i++)
        free(s->paths[i]);
    free(s);
}

static struct vf_expert_extent stripe_extent(const void *ctx, uint32_t layer, uint32_t expert)
{
    const struct vf_bank_stripes *s = ctx;
    uint64_t key = (uint64_t)layer * vf_model_file_config(s->file)->expert_count + expert;
    struct vf_expert_extent x = vf_model_file_expert(s->file, layer, expert);
    x.file = (uint32_t)(key % s->count);
    x.offset = HEADER_BYTES + key / s->count * s->record_bytes;
    return x;
}

enum vf_code vf_expert_bank_of(const struct vf_model_file *f, const struct vf_bank_stripes *s,
                               struct vf_expert_bank *out, struct vf_err *err)
{
    enum vf_code code = vf_expert_bank_from_model(f, out, err);
    if (code != VF_OK || !s)
        return code;
    for (uint32_t i = 0; i < s->count; i++)
        out->files[i] = s->paths[i];
    out->file_count = s->count;
    out->extent = stripe_extent;
    out->ctx = s;
    return VF_OK;
}

/* ---- writing ------------------------------------------------------------------------------- */

/* Of a copy in record: what was verified is what is written. */
static enum vf_code write_record(const struct vf_model_file *f, uint8_t *record, int fd,
                                 uint64_t key, uint64_t offset, const char *path,
                                 struct vf_err *err)
{
    uint32_t experts = vf_model_file_config(f)->expert_count;
    uint32_t layer = (uint32_t)(key / experts), expert = (uint32_t)(key % experts);
    uint64_t bytes = vf_model_file_expert_layout(f).bytes;
    memcpy(record, vf_model_file_expert_data(f, layer, expert), bytes);
    enum vf_code code = vf_model_file_verify_expert(f, layer, expert, record, err);
    return code == VF_OK ? vf_pwrite_full(fd, record, bytes, offset, path, err) : code;
}

static enum vf_code write_stripe(const struct vf_model_file *f, const char *path, uint32_t stripe,
                                 uint32_t count, const volatile sig_atomic_t *cancel,
                                 struct vf_err *err)
{
    struct disk_stripe header;
    struct vf_out_file *out;
    fill_header(f, stripe, count, &header);
    uint8_t *record = malloc(header.record_bytes);
    if (!record)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory for a record", path);
    enum vf_code code = vf_out_file_create(path, &out, err);
    if (code != VF_OK) {
        free(record);
        return code;
    }
    code = vf_pwrite_full(vf_out_file_fd(out), &header, sizeof header, 0, path, err);
    for (uint64_t i = 0; i < header.record_count && code == VF_OK; i++) {
        if (*cancel)
            code = vf_err_set(err, VF_ERR_CANCELLED, "%s: cancelled", path);
        else
            code = write_record(f, record, vf_out_file_fd(out), i * count + stripe,
                                HEADER_BYTES + i * header.record_bytes, path, err);
        vf_progress("split", VF_PROGRESS_ITEMS, stripe * header.record_count + i + 1,
                    count * header.record_count);
    }
    free(record);
    if (code == VF_OK)
        return vf_out_file_commit(out, err);
    vf_out_file_abandon(out);
    return code;
}

enum vf_code vf_bank_stripes_write(const struct vf_model_file *f, const char *const *paths,
                                   uint32_t count, const volatile sig_atomic_t *cancel,
                                   struct vf_err *err)
{
    if (vf_model_file_config(f)->expert_count == 0)
        return vf_err_set(err, VF_ERR_UNSUPPORTED, "%s: the model has no experts",
                          vf_model_file_path(f));
    enum vf_code code = VF_OK;
    for (uint32_t i = 0; i < count && code == VF_OK; i++)
        code = write_stripe(f, paths[i], i, count, cancel, err);
    return code;
}
