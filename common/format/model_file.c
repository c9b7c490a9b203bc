/* Opens, maps and closes a model file and answers look-ups in its checked tables. */
#include "common/base/log.h"
#include "common/base/map_guard.h"
#include "common/base/util.h"
#include "common/format/model_file_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_BYTES 4096ull
#define COPY_BYTES (8ull << 20)

enum vf_code vf_model_bad(const struct vf_model_file *f, enum vf_code code, struct vf_err *err,
                          const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return vf_err_set(err, code, "%s: %s", f->path, text);
}

static enum vf_code map_file(struct vf_model_file *f, struct vf_err *err)
{
    enum vf_code code = vf_model_refuse_directory(f->path, err);
    if (!code)
        code = vf_open_input(f->path, &f->fd, &f->bytes, err);
    if (!code)
        code = vf_model_refuse_unconverted(f->path, f->fd, err);
    if (code)
        return code;
    if (fstat(f->fd, &f->stat) != 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "%s", f->path);
    if (f->bytes < VF_FILE_HEADER_BYTES)
        return bad(f, "file has %" PRIu64 " bytes, the header of a model file alone has %u",
                   f->bytes, VF_FILE_HEADER_BYTES);
    code = vf_pread_full(f->fd, &f->header, sizeof f->header, 0, f->path, err);
    if (code)
        return code;
    void *map = mmap(NULL, f->bytes, PROT_READ, MAP_SHARED, f->fd, 0);
    if (map == MAP_FAILED)
        return vf_err_errno(err, errno == ENOMEM ? VF_ERR_NO_MEMORY : VF_ERR_IO, errno,
                            "%s: mapping %" PRIu64 " bytes", f->path, f->bytes);
    f->map = map;
    f->weights = map;
    vf_map_guard_add(map, f->bytes, f->path);
    return VF_OK;
}

/* ---- open and close ---- */

enum vf_code vf_model_file_open(const char *path, struct vf_model_file **out, struct vf_err *err)
{
    struct vf_model_file *f = calloc(1, sizeof *f);
    if (!f || !(f->path = strdup(path))) {
        free(f);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", path);
    }
    f->fd = -1;
    enum vf_code code = map_file(f, err);
    if (!code)
        code = vf_model_file_check(f, err);
    if (code) {
        vf_model_file_close(f);
        return code;
    }
    *out = f;
    return VF_OK;
}

void vf_model_file_close(struct vf_model_file *f)
{
    if (!f)
        return;
    json_decref(f->chat);
    if (f->has_config)
        vf_config_deinit(&f->config);
    if (f->weights != f->map)
        munmap((void *)(uintptr_t)f->weights, f->bytes);
    if (f->map) {
        vf_map_guard_remove(f->map);
        munmap((void *)(uintptr_t)f->map, f->bytes);
    }
    if (f->fd >= 0)
        close(f->fd);
    free(f->tensors);
    free(f->groups);
    free(f->experts);
    free(f->index);
    free(f->path);
    free(f);
}

/* ---- a file that is written to ---- */

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* Another name or mode changes ctime as new bytes do, even if mtime was set back: then the header
 * decides, whose checksum covers all others. */
static bool same_header(const struct vf_model_file *f)
{
    struct vf_disk_header now;
    return pread(f->fd, &now, sizeof now, 0) == (ssize_t)sizeof now &&
           memcmp(&now, &f->header, sizeof now) == 0;
}

enum vf_code vf_model_file_check_unchanged(const struct vf_model_file *f, struct vf_err *err)
{
    struct stat now;
    if (f->weights != f->map)
        return VF_OK;
    if (fstat(f->fd, &now) != 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "%s", f->path);
    if (now.st_size == f->stat.st_size && same_time(now.st_mtim, f->stat.st_mtim) &&
        (same_time(now.st_ctim, f->stat.st_ctim) || same_header(f)))
        return VF_OK;
    return vf_model_bad(f, VF_ERR_IO, err,
                        "the file was written to while it is in use; write a new one beside it "
                        "and rename it instead");
}

/* ---- weights in memory ---- */

/* madvise succeeds also where the system's setting makes it mean nothing. */
static bool huge_pages_off(void)
{
    char text[80] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    bool off = f && fgets(text, sizeof text, f) && strstr(text, "[never]");
    if (f)
        fclose(f);
    return off;
}

/* Gives the mapped pages back piece by piece, so that copy and original are never whole at once. */
static void copy_range(uint8_t *copy, const uint8_t *map, struct vf_weight_range r,
                       vf_copied_fn *copied, void *ctx)
{
    uint64_t end = r.offset + r.bytes;
    for (uint64_t at = r.offset; at < end; at += COPY_BYTES) {
        uint64_t n = vf_min_u64(COPY_BYTES, end - at), page = at & ~(PAGE_BYTES - 1);
        memcpy(copy + at, map + at, n);
        madvise((void *)(uintptr_t)(map + page), at + n - page, MADV_DONTNEED);
        if (copied)
            copied(ctx, n);
    }
}

enum vf_code vf_model_file_own_weights(struct vf_model_file *f,
                                       const struct vf_weight_range *ranges, size_t count,
                                       vf_copied_fn *copied, void *ctx, struct vf_err *err)
{
    VF_ASSERT(f->weights == f->map);
    /* As large as the file, so offsets stay what they are; only what is copied takes memory. */
    uint8_t *copy = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (copy == MAP_FAILED)
        return vf_err_errno(err, VF_ERR_NO_MEMORY, errno, "%s: a copy of %" PRIu64 " bytes",
                            f->path, f->bytes);
    if (madvise(copy, f->bytes, MADV_HUGEPAGE) != 0 || huge_pages_off())
        vf_warn("%s: the system grants no transparent huge pages, the weights are copied into "
                "ordinary ones",
                f->path);
    for (size_t i = 0; i < count; i++) {
        VF_ASSERT(ranges[i].bytes <= f->bytes && ranges[i].offset <= f->bytes - ranges[i].bytes);
        copy_range(copy, f->map, ranges[i], copied, ctx);
    }
    f->weights = copy;
    return VF_OK;
}

static int compare_ranges(const void *a, const void *b)
{
    const struct vf_weight_range *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

void vf_model_file_want_only(const struct vf_model_file *f, struct vf_weight_range *ranges,
                             size_t count)
{
    qsort(ranges, count, sizeof *ranges, compare_ranges);
    /* Advice may be refused: then more is read than is needed, which costs page cache only. */
    madvise((void *)(uintptr_t)f->map, f->bytes, MADV_RANDOM);
    for (size_t i = 0; i < count;) {
        uint64_t begin = ranges[i].offset & ~(PAGE_BYTES - 1), end = begin;
        while (i < count && (ranges[i].offset & ~(PAGE_BYTES - 1)) <= end) {
            end = vf_max_u64(end, vf_round_up(ranges[i].offset + ranges[i].bytes, PAGE_BYTES));
            i++;
        }
        madvise((void *)(uintptr_t)(f->map + begin), vf_min_u64(end, f->bytes) - begin,
                MADV_WILLNEED);
    }
}

/* ---- look-ups ---- */

size_t vf_model_index_slot(const struct vf_model_file *f, uint32_t kind, uint32_t layer,
                           uint32_t flow)
{
    size_t row = layer == VF_LAYER_NONE ? 0 : (size_t)layer + 1;
    return (row * f->config.flow_count + flow) * VF_T_KIND_COUNT + kind;
}

uint32_t vf_model_find_entry(const struct vf_model_file *f, struct vf_tensor_id id)
{
    bool layer_ok = id.layer == VF_LAYER_NONE || id.layer < f->config.layer_count;
    if ((unsigned)id.kind >= VF_T_KIND_COUNT || !layer_ok || id.flow >= f->config.flow_count)
        return VF_ENTRY_NONE;
    return f->index[vf_model_index_slot(f, id.kind, id.layer, id.flow)];
}

const char *vf_model_file_path(const struct vf_model_file *f)
{
    return f->path;
}

enum vf_file_format vf_model_file_format(const struct vf_model_file *f)
{
    return f->format;
}

const struct vf_config *vf_model_file_config(const struct vf_model_file *f)
{
    return &f->config;
}

uint64_t vf_model_file_bytes(const struct vf_model_file *f)
{
    return f->bytes;
}

uint64_t vf_model_file_fingerprint(const struct vf_model_file *f)
{
    return f->header.xxh3;
}

const char *vf_model_file_quant_name(const struct vf_model_file *f)
{
    return f->header.quant == VF_QUANT_MIXED ? "mixed" : vf_quant_name(f->header.quant);
}

const char *vf_model_file_tokenizer(const struct vf_model_file *f, size_t *bytes)
{
    *bytes = f->sections[VF_SECTION_TOKENIZER].bytes;
    return *bytes ? (const char *)f->map + f->sections[VF_SECTION_TOKENIZER].offset : NULL;
}

const json_t *vf_model_file_chat(const struct vf_model_file *f)
{
    return f->chat;
}

bool vf_model_file_matrix(const struct vf_model_file *f, struct vf_tensor_id id,
                          struct vf_matrix *out)
{
    uint32_t i = vf_model_find_entry(f, id);
    if (i == VF_ENTRY_NONE || vf_model_entry_is_vector(&f->tensors[i]))
        return false;
    const struct vf_disk_tensor *t = &f->tensors[i];
    *out = (struct vf_matrix){f->weights + t->offset, t->rows, t->cols, t->quant};
    return true;
}

const float *vf_model_file_vector(const struct vf_model_file *f, struct vf_tensor_id id)
{
    uint32_t i = vf_model_find_entry(f, id);
    if (i == VF_ENTRY_NONE || !vf_model_entry_is_vector(&f->tensors[i]))
        return NULL;
    return (const void *)(f->weights + f->tensors[i].offset);
}

struct vf_expert_extent vf_model_file_expert(const struct vf_model_file *f, uint32_t layer,
                                             uint32_t expert)
{
    VF_ASSERT(layer < f->config.layer_count && expert < f->config.expert_count);
    const struct vf_disk_expert *e = &f->experts[(uint64_t)layer * f->config.expert_count + expert];
    return (struct vf_expert_extent){e->offset, e->bytes, e->xxh3, 0};
}

struct vf_expert_layout vf_model_file_expert_layout(const struct vf_model_file *f)
{
    return f->expert.layout;
}

const uint8_t *vf_model_file_expert_data(const struct vf_model_file *f, uint32_t layer,
                                         uint32_t expert)
{
    return f->weights + vf_model_file_expert(f, layer, expert).offset;
}

void vf_expert_matrices(const struct vf_model_file *f, const uint8_t *data, struct vf_matrix *gate,
                        struct vf_matrix *up, struct vf_matrix *down)
{
    struct vf_matrix *parts[3] = {gate, up, down};
    for (int part = 0; part < 3; part++)
        *parts[part] =
            (struct vf_matrix){data + vf_expert_part_offset(&f->expert, part), f->expert.rows[part],
                               f->expert.cols[part], f->expert.layout.quant[part]};
}

size_t vf_model_file_tensor_count(const struct vf_model_file *f)
{
    return f->tensor_count;
}

struct vf_tensor_entry_view vf_model_file_tensor(const struct vf_model_file *f, size_t i)
{
    VF_ASSERT(i < f->tensor_count);
    const struct vf_disk_tensor *t = &f->tensors[i];
    return (struct vf_tensor_entry_view){
        .spec = {vf_model_entry_id(t), t->rows, t->cols, vf_model_entry_is_vector(t)},
        .quant = t->quant,
        .offset = t->offset,
        .bytes = t->bytes,
        .xxh3 = t->xxh3,
    };
}

size_t vf_model_file_group_count(const struct vf_model_file *f)
{
    return f->group_count;
}

struct vf_group_view vf_model_file_group(const struct vf_model_file *f, size_t i)
{
    VF_ASSERT(i < f->group_count);
    const struct vf_disk_group *g = &f->groups[i];
    return (struct vf_group_view){g->layer_begin, g->layer_end,    g->attn_offset,
                                  g->attn_bytes,  g->dense_offset, g->dense_bytes};
}
