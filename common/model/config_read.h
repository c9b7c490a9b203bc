/* Inside the config parser only: one parse's state, the model types, small readers of fields.
 *
 * config.c owns the order of a parse; config_read.c reads single fields and the model type;
 * config_groups.c reads the keys group by group into the config; config_check.c refuses what the
 * values mean together. Every function names file, field, found and allowed in its error.
 */
#ifndef VF_COMMON_MODEL_CONFIG_READ_H
#define VF_COMMON_MODEL_CONFIG_READ_H

#include "common/model/config.h"

enum vf_config_type_flags {
    VF_TYPE_NATIVE = 1,
    VF_TYPE_MOE = 2,             /* every layer has experts and no dense FFN */
    VF_TYPE_EXPERT_SIZE_OWN = 4, /* moe_intermediate_size; else intermediate_size is the experts' */
    VF_TYPE_BIAS = 8,            /* q, k and v have biases, always */
    VF_TYPE_WINDOW = 16,         /* sliding_window counts whenever it is set */
    VF_TYPE_WINDOW_SWITCH = 32,  /* sliding_window counts when use_sliding_window is true */
    VF_TYPE_TOPK_RAW = 64,       /* norm_topk_prob is false when absent */
};

struct vf_config_type {
    const char *name;
    unsigned flags;
    enum vf_qk_norm qk_norm;
    double rope_theta; /* when absent */
};

/* One parse: what every reader below needs. */
struct vf_config_reader {
    const json_t *obj;
    const char *where;
    const struct vf_config_type *type;
    struct vf_config *c;
    struct vf_err *err;
};

/* NULL-terminated, by enum value. */
extern const char *const vf_style_names[VF_STYLE_COUNT + 1];
extern const char *const vf_activation_names[VF_ACT_COUNT + 1];

/* The field as vf_json_get_* wants it. */
struct vf_json_field vf_config_field(const struct vf_config_reader *r, const char *key,
                                     bool required);
/* An absent or null key leaves *out as it was. found may be NULL. */
enum vf_code vf_config_read_u32(struct vf_config_reader *r, const char *key, bool required,
                                uint32_t min, uint32_t max, uint32_t *out, bool *found);
enum vf_code vf_config_read_float(struct vf_config_reader *r, const char *key, double min,
                                  double max, float *out);
enum vf_code vf_config_read_bool(struct vf_config_reader *r, const char *key, bool *out);
/* A string out of a NULL-terminated list, as its index. */
enum vf_code vf_config_read_name(struct vf_config_reader *r, const char *key,
                                 const char *const *names, int *out);
/* Index in a NULL-terminated list, or -1. */
int vf_config_find_name(const char *const *names, const char *name);
/* NULL for an absent key and for null. */
const json_t *vf_config_get_value(const struct vf_config_reader *r, const char *key);
/* "an object", "an integer", "nothing": for messages. */
const char *vf_config_json_kind(const json_t *v);
enum vf_code vf_config_refuse_kind(const struct vf_config_reader *r, const char *key,
                                   const json_t *v, const char *allowed);

/* Sets r->type and the config's model_type; refuses unknown types and, for pipeline_native,
 * unknown keys. */
enum vf_code vf_config_read_type(struct vf_config_reader *r);
/* Fills the whole config: defaults, then every key of the type. */
enum vf_code vf_config_read_groups(struct vf_config_reader *r);
/* What Hugging Face's code would do and this program doesn't. */
enum vf_code vf_config_check_hugging_face(struct vf_config_reader *r);
/* The combination as a whole: the config is usable afterwards. */
enum vf_code vf_config_check_whole(const struct vf_config_reader *r);

#endif
