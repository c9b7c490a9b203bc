#include "common/settings/settings.h"

#include "common/base/util.h"
#include "common/experts/cache.h"
#include "common/model/config.h"
#include "common/model/placement.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX     1024
#define BATCH_MAX       1024
#define CHUNK_MAX       4096 /* a step message stays small beside VF_WIRE_MESSAGE_MAX */
#define CHUNK_DEFAULT   256
#define IO_DEPTH_MAX    256
#define VERBOSE_MAX     2
#define MEMORY_MAX      9.2e18
#define IO_THROTTLE_MAX 1e12
#define FILE_BYTES_MAX  ((size_t)1 << 20)

struct setting {
    const char *name;
    char short_name;
    enum vf_opt_type type;
    size_t offset; /* of its field */
    const char *metavar, *help;
    double min, max;
    const char *const *words; /* in the order of the enum */
};

static const char *const activation_words[] = {"q8", "f32", NULL};
static const char *const kernel_words[] = {"auto", "scalar", "avx2", "avx512", "vnni", NULL};
static const char *const kv_words[] = {"auto", "f16", "f32", NULL};
static const char *const overlap_words[] = {"staged", "sync", NULL};
static const char *const speculate_words[] = {"auto", "on", "off", NULL};
static const char *const io_words[] = {"direct", "buffered", NULL};
static const char *const weights_words[] = {"mmap", "huge", NULL};
static const char *const experts_words[] = {"auto", "resident", "stream", NULL};
static const char *const placement_words[] = {"pipeline", NULL};

#define FIELD(name) offsetof(Vflow__RunSettings, name)

static const struct setting table[] = {
    {"model", 'm', VF_OPT_STRING, FIELD(model), "FILE", "the .vflow or .cflow file", 0, 0, NULL},
    {"activations", 0, VF_OPT_CHOICE, FIELD(activations), NULL,
     "precision of activations (q8: fast)", 0, 0, activation_words},
    {"threads", 't', VF_OPT_UINT32, FIELD(threads), "N",
     "threads of each stage worker (default: the cores of a node)", 1, THREADS_MAX, NULL},
    {"stage-workers", 0, VF_OPT_UINT32, FIELD(stage_workers), "N",
     "processes that share the layers (default: one per NUMA node)", 1, VF_STAGE_WORKERS_MAX, NULL},
    {"io-workers", 0, VF_OPT_UINT32, FIELD(io_workers), "N",
     "processes that read experts, when these are streamed (default 1)", 1, VF_CACHE_IO_WORKERS_MAX,
     NULL},
    {"placement", 0, VF_OPT_CHOICE, FIELD(placement), NULL,
     "how operations are spread over stage workers", 0, 0, placement_words},
    {"weights", 0, VF_OPT_CHOICE, FIELD(weights), NULL,
     "mapped from the page cache, or copied into huge pages (mmap)", 0, 0, weights_words},
    {"experts", 0, VF_OPT_CHOICE, FIELD(experts), NULL,
     "all in memory, or streamed from the drive (auto: what fits --memory)", 0, 0, experts_words},
    {"memory", 0, VF_OPT_SIZE, FIELD(memory), "SIZE",
     "all processes together stay below this (default: what is available)", 1, MEMORY_MAX, NULL},
    {"expert-cache", 0, VF_OPT_SIZE, FIELD(expert_cache), "SIZE",
     "memory for streamed experts (default: what --memory leaves)", 1, MEMORY_MAX, NULL},
    {"io", 0, VF_OPT_CHOICE, FIELD(io), NULL, "how experts are read", 0, 0, io_words},
    {"expert-bank", 0, VF_OPT_STRING, FIELD(expert_bank), "DIR,DIR",
     "where vflow-convert --split-bank put the experts (default: the model file)", 0, 0, NULL},
    {"io-depth", 0, VF_OPT_UINT32, FIELD(io_depth), "N",
     "reads in flight per I/O worker (default: what a probe of the drive finds)", 1, IO_DEPTH_MAX,
     NULL},
    {"io-throttle", 0, VF_OPT_SIZE, FIELD(io_throttle), "SIZE",
     "bytes a second of each I/O worker at most, for experiments", 1, IO_THROTTLE_MAX, NULL},
    {"overlap", 0, VF_OPT_CHOICE, FIELD(overlap), NULL,
     "wait for experts where they are due, or where they are chosen", 0, 0, overlap_words},
    {"speculate", 0, VF_OPT_CHOICE, FIELD(speculate), NULL,
     "let an idle drive read guesses of the next layers' experts (auto: while it pays)", 0, 0,
     speculate_words},
    {"kernel", 0, VF_OPT_CHOICE, FIELD(kernel), NULL, "instruction set", 0, 0, kernel_words},
    {"kv", 0, VF_OPT_CHOICE, FIELD(kv), NULL,
     "precision of the KV cache (auto: f32 with f32 activations, else f16)", 0, 0, kv_words},
    {"ctx", 0, VF_OPT_UINT32, FIELD(ctx), "N",
     "positions of a sequence (default: the model's, at most 4096)", 1, VF_CONTEXT_MAX, NULL},
    {"batch", 0, VF_OPT_UINT32, FIELD(batch), "N", "sequences computed together", 1, BATCH_MAX,
     NULL},
    {"prefill-chunk", 0, VF_OPT_UINT32, FIELD(prefill_chunk), "N",
     "positions of a prompt per step (default 256)", 1, CHUNK_MAX, NULL},
    {"verbose", 'v', VF_OPT_COUNT, FIELD(verbose), NULL, "say more on stderr; twice: much more", 0,
     VERBOSE_MAX, NULL},
};

_Static_assert(VF_ARRAY_LEN(table) <= VF_RUN_SETTINGS_MAX, "callers have room for every row");

void vf_run_settings_init(Vflow__RunSettings *s)
{
    vflow__run_settings__init(s);
    s->model = s->expert_bank = NULL;
    s->batch = 1;
    s->prefill_chunk = CHUNK_DEFAULT;
}

static struct vf_opt option(const struct setting *row, Vflow__RunSettings *s)
{
    return (struct vf_opt){row->name,    row->short_name, row->type, (char *)s + row->offset,
                           row->metavar, row->help,       row->min,  row->max,
                           row->words};
}

size_t vf_run_settings_options(Vflow__RunSettings *s, struct vf_opt *opts)
{
    for (size_t i = 0; i < VF_ARRAY_LEN(table); i++)
        opts[i] = option(&table[i], s);
    return VF_ARRAY_LEN(table);
}

static const struct setting *find(const char *name)
{
    for (size_t i = 0; i < VF_ARRAY_LEN(table); i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

const char *vf_run_settings_word(const char *name, int value)
{
    const struct setting *row = find(name);
    VF_ASSERT(row && row->words);
    for (int i = 0; row->words[i]; i++)
        if (i == value)
            return row->words[i];
    vf_assert_fail("a word of the setting", __FILE__, __LINE__);
}

/* ---- environment --------------------------------------------------------------------------- */

enum vf_code vf_run_settings_from_env(Vflow__RunSettings *s, struct vf_err *err)
{
    for (size_t i = 0; i < VF_ARRAY_LEN(table); i++) {
        char name[64];
        int n = snprintf(name, sizeof name, "VFLOW_%s", table[i].name);
        for (char *p = name; p < name + n; p++)
            *p = *p == '-' ? '_' : *p >= 'a' && *p <= 'z' ? (char)(*p - 'a' + 'A') : *p;
        const char *text = getenv(name);
        const struct vf_opt opt = option(&table[i], s);
        enum vf_code code = text ? vf_cli_set(&opt, text, err) : VF_OK;
        if (code)
            return vf_err_prepend(err, "%s: ", name);
    }
    return VF_OK;
}

/* ---- file ---------------------------------------------------------------------------------- */

static const char *json_kind(const json_t *value)
{
    static const char *const kinds[] = {"an object", "an array", "a string", "a whole number",
                                        "a number",  "true",     "false",    "null"};
    return kinds[json_typeof(value)];
}

static enum vf_code set_from_json(const struct vf_opt *opt, const json_t *value, struct vf_err *err)
{
    char number[32];
    bool word = opt->type == VF_OPT_CHOICE || opt->type == VF_OPT_STRING;
    if (json_is_string(value) && (word || opt->type == VF_OPT_SIZE))
        return vf_cli_set(opt, json_string_value(value), err);
    if (!json_is_integer(value) || word)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s found, allowed: %s", json_kind(value),
                          word                       ? "a string"
                          : opt->type == VF_OPT_SIZE ? "a number or a string like \"4G\""
                                                     : "a whole number");
    snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    return vf_cli_set(opt, number, err);
}

static enum vf_code refuse_key(const char *key, struct vf_err *err)
{
    char names[512] = "";
    for (size_t i = 0; i < VF_ARRAY_LEN(table); i++) {
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", table[i].name);
    }
    return vf_err_set(err, VF_ERR_CORRUPT, "'%.64s' found, allowed are the settings %s", key,
                      names);
}

static enum vf_code set_fields(Vflow__RunSettings *s, json_t *object, struct vf_err *err)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        const struct setting *row = find(key);
        if (!row)
            return refuse_key(key, err);
        const struct vf_opt opt = option(row, s);
        enum vf_code code = set_from_json(&opt, value, err);
        if (code)
            return vf_err_prepend(err, "%s: ", key);
    }
    return VF_OK;
}

enum vf_code vf_run_settings_from_file(Vflow__RunSettings *s, const char *path, json_t **owner,
                                       struct vf_err *err)
{
    *owner = NULL;
    json_t *object;
    enum vf_code code = vf_json_load(path, FILE_BYTES_MAX, &object, err);
    if (code)
        return code;
    if (json_is_object(object))
        code = set_fields(s, object, err);
    else
        code = vf_err_set(err, VF_ERR_CORRUPT, "%s found, allowed: an object of settings",
                          json_kind(object));
    if (code) {
        json_decref(object);
        err->code = VF_ERR_CORRUPT; /* of the file, not of the command line */
        vf_err_prepend(err, "%s: ", path);
        return VF_ERR_CORRUPT;
    }
    *owner = object;
    return VF_OK;
}

/* ---- messages ------------------------------------------------------------------------------ */

static enum vf_code check_word(const struct setting *row, uint32_t value, struct vf_err *err)
{
    char allowed[160] = "";
    uint32_t count = 0;
    for (; row->words[count]; count++) {
        size_t n = strlen(allowed);
        snprintf(allowed + n, sizeof allowed - n, "%s%s", count ? ", " : "", row->words[count]);
    }
    if (value < count)
        return VF_OK;
    return vf_err_set(err, VF_ERR_PROTOCOL,
                      "%s: the unknown word number %" PRIu32 " found, allowed: %s", row->name,
                      value, allowed);
}

static enum vf_code check_number(const struct setting *row, uint64_t value, struct vf_err *err)
{
    if (value == 0 || ((double)value >= row->min && (double)value <= row->max))
        return VF_OK;
    return vf_err_set(err, VF_ERR_PROTOCOL, "%s: %" PRIu64 " found, allowed: 0 and %.0f to %.0f",
                      row->name, value, row->min, row->max);
}

enum vf_code vf_run_settings_check(const Vflow__RunSettings *s, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    for (size_t i = 0; i < VF_ARRAY_LEN(table) && !code; i++) {
        const struct setting *row = &table[i];
        const void *field = (const char *)s + row->offset;
        uint32_t word = 0;
        uint64_t size = 0;
        if (row->type == VF_OPT_SIZE)
            memcpy(&size, field, sizeof size);
        else if (row->type != VF_OPT_STRING)
            memcpy(&word, field, sizeof word);
        if (row->type == VF_OPT_CHOICE)
            code = check_word(row, word, err);
        else if (row->type != VF_OPT_STRING)
            code = check_number(row, row->type == VF_OPT_SIZE ? size : word, err);
    }
    return code;
}
