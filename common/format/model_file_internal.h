/* What the parts of the model file reader share: the opened file and its look-up of entries.
 *
 * model_file.c opens, closes and answers look-ups, model_check.c checks everything at open,
 * model_verify.c reads weights and compares checksums.
 */
#ifndef VF_COMMON_FORMAT_MODEL_FILE_INTERNAL_H
#define VF_COMMON_FORMAT_MODEL_FILE_INTERNAL_H

#include "common/format/layout.h"

#include <stddef.h>
#include <sys/stat.h>

#define VF_ENTRY_NONE UINT32_MAX

struct vf_file_range {
    uint64_t offset, bytes;
};

/* Tables are copied to the heap before they are checked, so what was checked stays true whatever
 * happens to the file. Weights, the tokenizer and the tile directory are read from the mapping:
 * nothing in them says where to read. */
struct vf_model_file {
    char *path;
    int fd;
    struct stat stat; /* as it was opened; see vf_model_file_check_unchanged */
    const uint8_t *map;
    const uint8_t *weights; /* map, or the copy in huge pages: tensors and experts */
    uint64_t bytes;
    enum vf_file_format format;
    struct vf_disk_header header;                        /* a copy, too */
    struct vf_file_range sections[VF_SECTION_COUNT + 1]; /* by kind */
    struct vf_config config;
    bool has_config;
    json_t *chat; /* NULL: none */
    struct vf_disk_tensor *tensors;
    size_t tensor_count;
    uint32_t *index; /* table entry by (layer, flow, kind), see vf_model_index_slot */
    struct vf_disk_group *groups;
    size_t group_count;
    struct vf_disk_expert *experts; /* [layer_count * expert_count] */
    struct vf_expert_parts expert;
    const struct vf_disk_tile *tiles;
    uint64_t expert_tile_begin;
};

/* A range of the file with the tensor or expert that lies there. */
struct vf_extent {
    uint64_t begin, end;
    struct vf_tensor_id id;
};

/* Sets err to "path: text" and returns code. */
enum vf_code vf_model_bad(const struct vf_model_file *f, enum vf_code code, struct vf_err *err,
                          const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* The same for a broken file, where err is called err. */
#define bad(f, ...) vf_model_bad((f), VF_ERR_CORRUPT, err, __VA_ARGS__)

/* Header, sections, tables, in this order; fills everything but path, fd, map, bytes, header. */
enum vf_code vf_model_file_check(struct vf_model_file *f, struct vf_err *err);

/* layer is VF_LAYER_NONE or below layer_count, flow and kind are in range. */
size_t vf_model_index_slot(const struct vf_model_file *f, uint32_t kind, uint32_t layer,
                           uint32_t flow);
/* The table entry of a tensor, VF_ENTRY_NONE when the model has none. */
uint32_t vf_model_find_entry(const struct vf_model_file *f, struct vf_tensor_id id);
/* Every tensor and expert by offset; heap array, the caller frees. */
enum vf_code vf_model_list_extents(const struct vf_model_file *f, struct vf_extent **out,
                                   size_t *count, struct vf_err *err);
int vf_extent_compare(const void *a, const void *b);

static inline struct vf_tensor_id vf_model_entry_id(const struct vf_disk_tensor *t)
{
    return (struct vf_tensor_id){.kind = t->kind, .layer = t->layer, .flow = t->flow};
}
static inline bool vf_model_entry_is_vector(const struct vf_disk_tensor *t)
{
    return t->flags & VF_TENSOR_FLAG_VECTOR;
}
static inline bool vf_all_zero(const uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (p[i])
            return false;
    return true;
}

/* What people give instead of a model file, refused with the command that makes one of it (status
 * 3): a checkpoint's directory; in an open file GGUF, or by its name a safetensors file. VF_OK:
 * neither. */
enum vf_code vf_model_refuse_directory(const char *path, struct vf_err *err);
enum vf_code vf_model_refuse_unconverted(const char *path, int fd, struct vf_err *err);

#endif
