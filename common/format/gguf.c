/* One pass through the header with a cursor that reads the file as far as it gets, then the rules
 * that concern several tensors. A value isn't decoded while parsing: its place is kept, and the
 * getters decode it. */
#include "common/format/gguf.h"

#include "common/base/util.h"
#include "common/format/safetensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are read as they lie on disk");

#define READ_STEP (1u << 20)
/* The least that one of each takes: key length, one character, type, one byte of value. */
#define KEY_BYTES_MIN 14u
/* Name length, one character, rank, one dimension, type, offset. */
#define TENSOR_BYTES_MIN 33u

struct key {
    char *name;
    enum vf_gguf_type type, element; /* element: of an array */
    uint64_t count;                  /* of an array */
    size_t at;                       /* the value, or the first element, in head */
    char *string;                    /* a string value with a NUL behind it, else NULL */
    size_t string_bytes;
};

struct vf_gguf {
    char *path;
    int fd;
    uint64_t file_bytes;
    uint8_t *head; /* the file's first head_bytes bytes */
    size_t head_bytes, head_cap;
    size_t at; /* the cursor */
    struct key *keys;
    size_t key_count;
    struct vf_gguf_tensor *tensors;
    size_t tensor_count;
    const struct vf_gguf_tensor **by_name;
    char where[VF_NAME_PRINTABLE_BYTES + 32]; /* what is being parsed, for messages */
};

/* ---- messages ---- */

static enum vf_code bad(const struct vf_gguf *g, enum vf_code code, struct vf_err *err,
                        const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static enum vf_code bad(const struct vf_gguf *g, enum vf_code code, struct vf_err *err,
                        const char *fmt, ...)
{
    char text[384];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return vf_err_set(err, code, "%s: %s: %s", g->path, g->where, text);
}
#define corrupt(g, ...) bad((g), VF_ERR_CORRUPT, err, __VA_ARGS__)

static void set_where(struct vf_gguf *g, const char *what, const char *name)
{
    char printable[VF_NAME_PRINTABLE_BYTES];
    snprintf(g->where, sizeof g->where, "%s \"%s\"", what,
             vf_name_printable(name, printable, sizeof printable));
}

static enum vf_code no_memory(const struct vf_gguf *g, struct vf_err *err)
{
    return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory for its metadata", g->path);
}

static const struct {
    uint32_t type;
    const char *name;
} ggml_names[] = {
    {0, "F32"},     {1, "F16"},    {2, "Q4_0"},     {3, "Q4_1"},    {6, "Q5_0"},     {7, "Q5_1"},
    {8, "Q8_0"},    {9, "Q8_1"},   {10, "Q2_K"},    {11, "Q3_K"},   {12, "Q4_K"},    {13, "Q5_K"},
    {14, "Q6_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"}, {24, "I8"},      {25, "I16"},
    {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},  {30, "BF16"},    {34, "TQ1_0"},
    {35, "TQ2_0"},  {39, "MXFP4"},
};

const char *vf_ggml_type_name(uint32_t type)
{
    for (size_t i = 0; i < VF_ARRAY_LEN(ggml_names); i++)
        if (ggml_names[i].type == type)
            return ggml_names[i].name;
    return "unknown";
}

/* Weights and bytes of one block; false for a type that isn't read. */
static bool ggml_block(uint32_t type, uint32_t *weights, uint32_t *bytes)
{
    *weights = type == VF_GGML_Q4_0 || type == VF_GGML_Q8_0 ? 32 : 1;
    *bytes = type == VF_GGML_F32                           ? 4
             : type == VF_GGML_F16 || type == VF_GGML_BF16 ? 2
             : type == VF_GGML_Q4_0                        ? 18
             : type == VF_GGML_Q8_0                        ? 34
                                                           : 0;
    return *bytes > 0;
}

uint64_t vf_ggml_row_bytes(enum vf_ggml_type type, uint64_t n)
{
    uint32_t weights, bytes;
    VF_ASSERT(ggml_block(type, &weights, &bytes) && n % weights == 0);
    return n / weights * bytes;
}

static const char *type_name(uint32_t type)
{
    static const char *const names[VF_GGUF_TYPE_COUNT] = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                          "i32", "f32", "bool", "string", "array",
                                                          "u64", "i64", "f64"};
    return type < VF_GGUF_TYPE_COUNT ? names[type] : "unknown";
}

/* Bytes of a scalar, 0 for strings and arrays. */
static unsigned scalar_bytes(enum vf_gguf_type type)
{
    static const uint8_t bytes[VF_GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return bytes[type];
}

/* ---- the cursor ---- */

static uint64_t bytes_left(const struct vf_gguf *g)
{
    return g->file_bytes - g->at;
}

/* Makes the n bytes behind the cursor present in head. */
static enum vf_code need(struct vf_gguf *g, uint64_t n, struct vf_err *err)
{
    if (n > bytes_left(g))
        return corrupt(g, "needs %" PRIu64 " bytes at byte %zu, the file ends at byte %" PRIu64, n,
                       g->at, g->file_bytes);
    uint64_t end = g->at + n;
    if (end <= g->head_bytes)
        return VF_OK;
    if (end > VF_GGUF_HEADER_BYTES_MAX)
        return corrupt(g, "ends at byte %" PRIu64 " of the header, at most %u are allowed", end,
                       VF_GGUF_HEADER_BYTES_MAX);
    size_t want = (size_t)vf_min_u64(vf_max_u64(end, g->head_bytes + READ_STEP), g->file_bytes);
    if (want > g->head_cap) {
        size_t cap = (size_t)vf_max_u64(want, g->head_cap * 2);
        uint8_t *head = realloc(g->head, cap);
        if (!head)
            return no_memory(g, err);
        g->head = head;
        g->head_cap = cap;
    }
    enum vf_code code = vf_pread_full(g->fd, g->head + g->head_bytes, want - g->head_bytes,
                                      g->head_bytes, g->path, err);
    if (!code)
        g->head_bytes = want;
    return code;
}

static enum vf_code take(struct vf_gguf *g, void *out, size_t n, struct vf_err *err)
{
    enum vf_code code = need(g, n, err);
    if (code)
        return code;
    memcpy(out, g->head + g->at, n);
    g->at += n;
    return VF_OK;
}

/* A string of at most max bytes; *at is where its bytes lie in head. */
static enum vf_code take_string(struct vf_gguf *g, uint64_t max, size_t *at, size_t *bytes,
                                struct vf_err *err)
{
    uint64_t n = 0;
    enum vf_code code = take(g, &n, sizeof n, err);
    if (code)
        return code;
    if (n > max)
        return corrupt(g, "a string has %" PRIu64 " bytes, at most %" PRIu64 " are allowed", n,
                       max);
    code = need(g, n, err);
    if (code)
        return code;
    if (!vf_utf8_valid((const char *)g->head + g->at, n))
        return corrupt(g, "the string at byte %zu isn't valid UTF-8", g->at);
    *at = g->at;
    *bytes = n;
    g->at += n;
    return VF_OK;
}

/* A name: not empty, no NUL in it; on the heap. */
static enum vf_code take_name(struct vf_gguf *g, uint64_t max, char **out, struct vf_err *err)
{
    size_t at = 0, n = 0;
    enum vf_code code = take_string(g, max, &at, &n, err);
    if (code)
        return code;
    if (n == 0 || memchr(g->head + at, 0, n))
        return corrupt(g, "its name is %s", n ? "a string with a NUL" : "empty");
    *out = strndup((const char *)g->head + at, n);
    return *out ? VF_OK : no_memory(g, err);
}

/* ---- metadata ---- */

static enum vf_code check_bools(const struct vf_gguf *g, size_t at, uint64_t count,
                                struct vf_err *err)
{
    for (uint64_t i = 0; i < count; i++)
        if (g->head[at + i] > 1)
            return corrupt(g, "a bool is %u, must be 0 or 1", g->head[at + i]);
    return VF_OK;
}

static enum vf_code check_type(const struct vf_gguf *g, uint32_t type, struct vf_err *err)
{
    if (type < VF_GGUF_TYPE_COUNT)
        return VF_OK;
    return corrupt(g, "value type is %u, must be below %u", type, VF_GGUF_TYPE_COUNT);
}

static enum vf_code take_array(struct vf_gguf *g, struct key *k, unsigned depth,
                               struct vf_err *err);

/* Elements of one type behind each other. */
static enum vf_code take_elements(struct vf_gguf *g, enum vf_gguf_type type, uint64_t count,
                                  unsigned depth, struct vf_err *err)
{
    enum vf_code code = VF_OK;
    unsigned size = scalar_bytes(type);
    /* A string is at least its length, an array its type and its count. */
    unsigned least = size ? size : type == VF_GGUF_STRING ? 8 : 12;
    if (count > bytes_left(g) / least)
        return corrupt(
            g, "%" PRIu64 " elements of type %s need more than the %" PRIu64 " bytes that are left",
            count, type_name(type), bytes_left(g));
    if (size) {
        code = need(g, count * size, err);
        if (!code && type == VF_GGUF_BOOL)
            code = check_bools(g, g->at, count, err);
        if (!code)
            g->at += count * size;
        return code;
    }
    for (uint64_t i = 0; i < count && !code; i++) {
        size_t at, n;
        struct key inner;
        code = type == VF_GGUF_STRING ? take_string(g, UINT32_MAX, &at, &n, err)
                                      : take_array(g, &inner, depth + 1, err);
    }
    return code;
}

static enum vf_code take_array(struct vf_gguf *g, struct key *k, unsigned depth, struct vf_err *err)
{
    uint32_t element = 0;
    if (depth > VF_GGUF_NESTING_MAX)
        return corrupt(g, "arrays are nested deeper than %u", VF_GGUF_NESTING_MAX);
    enum vf_code code = take(g, &element, sizeof element, err);
    if (!code)
        code = check_type(g, element, err);
    if (!code)
        code = take(g, &k->count, sizeof k->count, err);
    if (code)
        return code;
    k->element = element;
    k->at = g->at;
    return take_elements(g, element, k->count, depth, err);
}

static enum vf_code take_string_value(struct vf_gguf *g, struct key *k, struct vf_err *err)
{
    enum vf_code code = take_string(g, UINT32_MAX, &k->at, &k->string_bytes, err);
    if (code)
        return code;
    k->string = malloc(k->string_bytes + 1);
    if (!k->string)
        return no_memory(g, err);
    memcpy(k->string, g->head + k->at, k->string_bytes);
    k->string[k->string_bytes] = 0;
    return VF_OK;
}

static enum vf_code take_key(struct vf_gguf *g, struct key *k, struct vf_err *err)
{
    uint32_t type = 0;
    snprintf(g->where, sizeof g->where, "metadata entry %zu", g->key_count);
    enum vf_code code = take_name(g, VF_GGUF_KEY_BYTES_MAX, &k->name, err);
    if (code)
        return code;
    set_where(g, "metadata key", k->name);
    code = take(g, &type, sizeof type, err);
    if (!code)
        code = check_type(g, type, err);
    if (code)
        return code;
    k->type = type;
    k->at = g->at;
    if (type == VF_GGUF_STRING)
        return take_string_value(g, k, err);
    return type == VF_GGUF_ARRAY ? take_array(g, k, 1, err) : take_elements(g, type, 1, 1, err);
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const struct key *)a)->name, ((const struct key *)b)->name);
}

static enum vf_code take_keys(struct vf_gguf *g, uint64_t count, struct vf_err *err)
{
    g->keys = calloc(count + 1, sizeof *g->keys);
    if (!g->keys)
        return no_memory(g, err);
    enum vf_code code = VF_OK;
    for (uint64_t i = 0; i < count && !code; i++) {
        code = take_key(g, &g->keys[i], err);
        g->key_count++;
    }
    if (code)
        return code;
    qsort(g->keys, g->key_count, sizeof *g->keys, compare_keys);
    for (size_t i = 1; i < g->key_count; i++) {
        if (compare_keys(&g->keys[i - 1], &g->keys[i]) == 0) {
            set_where(g, "metadata key", g->keys[i].name);
            return corrupt(g, "is there twice");
        }
    }
    return VF_OK;
}

/* ---- tensors ---- */

static enum vf_code take_shape(struct vf_gguf *g, struct vf_gguf_tensor *t, struct vf_err *err)
{
    enum vf_code code = take(g, &t->rank, sizeof t->rank, err);
    if (code)
        return code;
    if (t->rank < 1 || t->rank > VF_GGUF_RANK_MAX)
        return corrupt(g, "has %u dimensions, must have 1 to %u", t->rank, VF_GGUF_RANK_MAX);
    for (uint32_t d = 0; d < VF_GGUF_RANK_MAX && !code; d++) {
        t->dims[d] = 1;
        if (d < t->rank)
            code = take(g, &t->dims[d], sizeof t->dims[d], err);
        if (!code && t->dims[d] == 0)
            code = corrupt(g, "dimension %u is 0, must be at least 1", d);
    }
    return code;
}

/* The byte count that shape and type give. */
static enum vf_code set_bytes(const struct vf_gguf *g, struct vf_gguf_tensor *t, struct vf_err *err)
{
    uint32_t weights, bytes;
    if (!ggml_block(t->type, &weights, &bytes))
        return bad(g, VF_ERR_UNSUPPORTED, err,
                   "has type %s (%u), must be F32, F16, BF16, Q8_0 or Q4_0",
                   vf_ggml_type_name(t->type), (unsigned)t->type);
    if (t->dims[0] % weights)
        return corrupt(g, "has rows of %" PRIu64 " weights, %s needs a multiple of %u", t->dims[0],
                       vf_ggml_type_name(t->type), weights);
    bool fits = vf_mul_u64(t->dims[0] / weights, bytes, &t->bytes);
    for (uint32_t d = 1; d < VF_GGUF_RANK_MAX && fits; d++)
        fits = vf_mul_u64(t->bytes, t->dims[d], &t->bytes);
    if (!fits)
        return corrupt(g, "its shape times its type overflows 64 bits");
    return VF_OK;
}

static enum vf_code take_tensor(struct vf_gguf *g, struct vf_gguf_tensor *t, struct vf_err *err)
{
    uint32_t type = 0;
    char *name = NULL;
    snprintf(g->where, sizeof g->where, "tensor %zu", g->tensor_count);
    enum vf_code code = take_name(g, VF_GGUF_NAME_BYTES_MAX, &name, err);
    t->name = name;
    if (code)
        return code;
    set_where(g, "tensor", t->name);
    code = take_shape(g, t, err);
    if (!code)
        code = take(g, &type, sizeof type, err);
    if (!code)
        code = take(g, &t->offset, sizeof t->offset, err);
    t->type = type;
    return code ? code : set_bytes(g, t, err);
}

static int compare_names(const void *a, const void *b)
{
    const struct vf_gguf_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static int compare_offsets(const void *a, const void *b)
{
    const struct vf_gguf_tensor *const *x = a, *const *y = b;
    if ((*x)->offset != (*y)->offset)
        return (*x)->offset < (*y)->offset ? -1 : 1;
    return (*x)->bytes < (*y)->bytes ? -1 : (*x)->bytes > (*y)->bytes;
}

static enum vf_code take_tensors(struct vf_gguf *g, uint64_t count, struct vf_err *err)
{
    g->tensors = calloc(count + 1, sizeof *g->tensors);
    g->by_name = calloc(count + 1, sizeof *g->by_name);
    if (!g->tensors || !g->by_name)
        return no_memory(g, err);
    enum vf_code code = VF_OK;
    for (uint64_t i = 0; i < count && !code; i++) {
        g->by_name[i] = &g->tensors[i];
        code = take_tensor(g, &g->tensors[i], err);
        g->tensor_count++;
    }
    return code;
}

/* Offsets count from the data section, which begins at the next multiple of the alignment. */
static enum vf_code place_data(struct vf_gguf *g, uint64_t align, struct vf_err *err)
{
    uint64_t begin = vf_round_up(g->at, align);
    for (size_t i = 0; i < g->tensor_count; i++) {
        struct vf_gguf_tensor *t = &g->tensors[i];
        set_where(g, "tensor", t->name);
        if (t->offset % align)
            return corrupt(g, "its data begin at %" PRIu64 ", must be a multiple of %" PRIu64,
                           t->offset, align);
        uint64_t room = begin < g->file_bytes ? g->file_bytes - begin : 0;
        if (t->offset > room || t->bytes > room - t->offset)
            return corrupt(g,
                           "its %" PRIu64 " bytes begin at %" PRIu64
                           " of the data, which have %" PRIu64 " bytes",
                           t->bytes, t->offset, room);
        t->offset += begin;
    }
    return VF_OK;
}

static enum vf_code check_overlaps(struct vf_gguf *g, struct vf_err *err)
{
    size_t n = g->tensor_count;
    qsort(g->by_name, n, sizeof *g->by_name, compare_offsets);
    for (size_t i = 1; i < n; i++) {
        const struct vf_gguf_tensor *a = g->by_name[i - 1], *b = g->by_name[i];
        if (b->offset >= a->offset + a->bytes)
            continue;
        char name[VF_NAME_PRINTABLE_BYTES];
        set_where(g, "tensor", b->name);
        return corrupt(
            g, "its data begin at byte %" PRIu64 ", before those of \"%s\" end at %" PRIu64,
            b->offset, vf_name_printable(a->name, name, sizeof name), a->offset + a->bytes);
    }
    return VF_OK;
}

static enum vf_code sort_names(struct vf_gguf *g, struct vf_err *err)
{
    qsort(g->by_name, g->tensor_count, sizeof *g->by_name, compare_names);
    for (size_t i = 1; i < g->tensor_count; i++) {
        if (compare_names(&g->by_name[i - 1], &g->by_name[i]) == 0) {
            set_where(g, "tensor", g->by_name[i]->name);
            return corrupt(g, "is there twice");
        }
    }
    return VF_OK;
}

/* ---- open and close ---- */

static enum vf_code check_count(const struct vf_gguf *g, const char *what, uint64_t count,
                                uint64_t most, uint64_t bytes_min, struct vf_err *err)
{
    most = vf_min_u64(most, bytes_left(g) / bytes_min);
    if (count <= most)
        return VF_OK;
    return corrupt(g, "%s is %" PRIu64 ", at most %" PRIu64 " %s", what, count, most,
                   most == bytes_left(g) / bytes_min ? "fit the file" : "are allowed");
}

static enum vf_code parse_start(struct vf_gguf *g, uint64_t *tensors, uint64_t *keys,
                                struct vf_err *err)
{
    char magic[4] = "";
    uint32_t version = 0;
    snprintf(g->where, sizeof g->where, "header");
    enum vf_code code = take(g, magic, sizeof magic, err);
    if (code)
        return code;
    if (memcmp(magic, "GGUF", 4) != 0)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: not a GGUF file: it must begin with GGUF",
                          g->path);
    code = take(g, &version, sizeof version, err);
    if (code)
        return code;
    if (version != 2 && version != 3)
        return bad(g, VF_ERR_UNSUPPORTED, err, "version is %u, must be 2 or 3 (little-endian)",
                   version);
    code = take(g, tensors, sizeof *tensors, err);
    if (!code)
        code = take(g, keys, sizeof *keys, err);
    if (!code)
        code = check_count(g, "tensor_count", *tensors, VF_GGUF_TENSORS_MAX, TENSOR_BYTES_MIN, err);
    if (!code)
        code = check_count(g, "metadata_kv_count", *keys, VF_GGUF_KEYS_MAX, KEY_BYTES_MIN, err);
    return code;
}

static enum vf_code read_alignment(struct vf_gguf *g, uint64_t *align, struct vf_err *err)
{
    *align = VF_GGUF_ALIGN_DEFAULT;
    enum vf_code code = vf_gguf_get_uint(g, (struct vf_gguf_field){"general.alignment", false}, 8,
                                         VF_GGUF_ALIGN_MAX, align, err);
    if (!code && *align & (*align - 1)) {
        set_where(g, "metadata key", "general.alignment");
        code = corrupt(g, "found %" PRIu64 ", must be a power of two", *align);
    }
    return code;
}

static enum vf_code parse(struct vf_gguf *g, struct vf_err *err)
{
    uint64_t tensors = 0, keys = 0, align = 0;
    enum vf_code code = vf_open_input(g->path, &g->fd, &g->file_bytes, err);
    if (!code)
        code = parse_start(g, &tensors, &keys, err);
    if (!code)
        code = take_keys(g, keys, err);
    if (!code)
        code = read_alignment(g, &align, err);
    if (!code)
        code = take_tensors(g, tensors, err);
    if (!code)
        code = place_data(g, align, err);
    if (!code)
        code = check_overlaps(g, err);
    return code ? code : sort_names(g, err);
}

enum vf_code vf_gguf_open(const char *path, struct vf_gguf **out, struct vf_err *err)
{
    struct vf_gguf *g = calloc(1, sizeof *g);
    if (!g || !(g->path = strdup(path))) {
        free(g);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", path);
    }
    g->fd = -1;
    enum vf_code code = parse(g, err);
    if (code) {
        vf_gguf_close(g);
        return code;
    }
    *out = g;
    return VF_OK;
}

void vf_gguf_close(struct vf_gguf *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->key_count; i++) {
        free(g->keys[i].name);
        free(g->keys[i].string);
    }
    for (size_t i = 0; i < g->tensor_count; i++)
        free((char *)(uintptr_t)g->tensors[i].name);
    if (g->fd >= 0)
        close(g->fd);
    free(g->keys);
    free(g->tensors);
    free(g->by_name);
    free(g->head);
    free(g->path);
    free(g);
}

const char *vf_gguf_path(const struct vf_gguf *g)
{
    return g->path;
}

/* ---- getters ---- */

static const struct key *find_key(const struct vf_gguf *g, const char *name)
{
    const struct key wanted = {.name = (char *)(uintptr_t)name};
    return bsearch(&wanted, g->keys, g->key_count, sizeof wanted, compare_keys);
}

size_t vf_gguf_key_count(const struct vf_gguf *g)
{
    return g->key_count;
}

const char *vf_gguf_key(const struct vf_gguf *g, size_t i)
{
    return g->keys[i].name;
}

bool vf_gguf_has(const struct vf_gguf *g, const char *key)
{
    return find_key(g, key);
}

static enum vf_code bad_key(const struct vf_gguf *g, const char *key, struct vf_err *err,
                            const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static enum vf_code bad_key(const struct vf_gguf *g, const char *key, struct vf_err *err,
                            const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return vf_err_set(err, VF_ERR_CORRUPT, "%s: metadata key \"%s\": %s", g->path, key, text);
}

/* *out stays NULL when the key is absent and may be. */
static enum vf_code look_up(const struct vf_gguf *g, struct vf_gguf_field f, const struct key **out,
                            struct vf_err *err)
{
    *out = find_key(g, f.key);
    if (!*out && f.required)
        return bad_key(g, f.key, err, "is missing");
    return VF_OK;
}

static enum vf_code wrong_type(const struct vf_gguf *g, const struct key *k, const char *allowed,
                               struct vf_err *err)
{
    bool array = k->type == VF_GGUF_ARRAY;
    return bad_key(g, k->name, err, "has type %s%s, must be %s", array ? "array of " : "",
                   type_name(array ? k->element : k->type), allowed);
}

/* A scalar integer as sign and magnitude, so that u64 and i64 fit. */
static bool decode_int(enum vf_gguf_type type, const uint8_t *p, bool *negative,
                       uint64_t *magnitude)
{
    bool is_signed =
        type == VF_GGUF_I8 || type == VF_GGUF_I16 || type == VF_GGUF_I32 || type == VF_GGUF_I64;
    unsigned size = scalar_bytes(type);
    if (!size || type == VF_GGUF_F32 || type == VF_GGUF_F64 || type == VF_GGUF_BOOL)
        return false;
    uint64_t v = 0;
    memcpy(&v, p, size);
    *negative = is_signed && v >> (8 * size - 1);
    if (*negative && size < 8)
        v |= ~0ull << (8 * size);
    *magnitude = *negative ? 0 - v : v;
    return true;
}

enum vf_code vf_gguf_get_uint(const struct vf_gguf *g, struct vf_gguf_field f, uint64_t min,
                              uint64_t max, uint64_t *out, struct vf_err *err)
{
    const struct key *k = NULL;
    enum vf_code code = look_up(g, f, &k, err);
    if (code || !k)
        return code;
    bool negative;
    uint64_t v;
    if (!decode_int(k->type, g->head + k->at, &negative, &v))
        return wrong_type(g, k, "an integer", err);
    if (negative || v < min || v > max)
        return bad_key(g, f.key, err, "found %s%" PRIu64 ", must be from %" PRIu64 " to %" PRIu64,
                       negative ? "-" : "", v, min, max);
    *out = v;
    return VF_OK;
}

enum vf_code vf_gguf_get_real(const struct vf_gguf *g, struct vf_gguf_field f, double min,
                              double max, double *out, struct vf_err *err)
{
    const struct key *k = NULL;
    enum vf_code code = look_up(g, f, &k, err);
    if (code || !k)
        return code;
    double v = 0;
    float narrow = 0;
    if (k->type == VF_GGUF_F32)
        memcpy(&narrow, g->head + k->at, sizeof narrow);
    else if (k->type == VF_GGUF_F64)
        memcpy(&v, g->head + k->at, sizeof v);
    else
        return wrong_type(g, k, "f32 or f64", err);
    v = k->type == VF_GGUF_F32 ? (double)narrow : v;
    if (!(v >= min && v <= max))
        return bad_key(g, f.key, err, "found %.9g, must be from %.9g to %.9g", v, min, max);
    *out = v;
    return VF_OK;
}

enum vf_code vf_gguf_get_bool(const struct vf_gguf *g, struct vf_gguf_field f, bool *out,
                              struct vf_err *err)
{
    const struct key *k = NULL;
    enum vf_code code = look_up(g, f, &k, err);
    if (code || !k)
        return code;
    if (k->type != VF_GGUF_BOOL)
        return wrong_type(g, k, "bool", err);
    *out = g->head[k->at];
    return VF_OK;
}

enum vf_code vf_gguf_get_string(const struct vf_gguf *g, struct vf_gguf_field f, const char **out,
                                struct vf_err *err)
{
    const struct key *k = NULL;
    enum vf_code code = look_up(g, f, &k, err);
    if (code || !k)
        return code;
    if (k->type != VF_GGUF_STRING)
        return wrong_type(g, k, "string", err);
    if (strlen(k->string) != k->string_bytes)
        return bad_key(g, f.key, err, "the string has a NUL in it");
    *out = k->string;
    return VF_OK;
}

enum vf_code vf_gguf_get_strings(const struct vf_gguf *g, struct vf_gguf_field f,
                                 struct vf_gguf_string **out, size_t *count, struct vf_err *err)
{
    const struct key *k = NULL;
    enum vf_code code = look_up(g, f, &k, err);
    if (code || !k)
        return code;
    if (k->type != VF_GGUF_ARRAY || k->element != VF_GGUF_STRING)
        return wrong_type(g, k, "array of string", err);
    struct vf_gguf_string *strings = malloc((k->count + 1) * sizeof *strings);
    if (!strings)
        return no_memory(g, err);
    size_t at = k->at;
    for (uint64_t i = 0; i < k->count; i++) {
        uint64_t n;
        memcpy(&n, g->head + at, sizeof n);
        strings[i] = (struct vf_gguf_string){(const char *)g->head + at + sizeof n, n};
        at += sizeof n + n;
    }
    *out = strings;
    *count = k->count;
    return VF_OK;
}

enum vf_code vf_gguf_get_ints(const struct vf_gguf *g, struct vf_gguf_field f, int32_t **out,
                              size_t *count, struct vf_err *err)
{
    const struct key *k = NULL;
    enum vf_code code = look_up(g, f, &k, err);
    if (code || !k)
        return code;
    bool negative = false;
    uint64_t v = 0;
    unsigned size = k->type == VF_GGUF_ARRAY ? scalar_bytes(k->element) : 0;
    const uint8_t probe[8] = {0};
    if (!size || !decode_int(k->element, probe, &negative, &v))
        return wrong_type(g, k, "array of integers", err);
    int32_t *ints = malloc((k->count + 1) * sizeof *ints);
    if (!ints)
        return no_memory(g, err);
    for (uint64_t i = 0; i < k->count; i++) {
        decode_int(k->element, g->head + k->at + i * size, &negative, &v);
        if (v > INT32_MAX) {
            free(ints);
            return bad_key(g, f.key, err,
                           "element %" PRIu64 " is %s%" PRIu64 ", must be within %d of 0", i,
                           negative ? "-" : "", v, INT32_MAX);
        }
        ints[i] = negative ? -(int32_t)v : (int32_t)v;
    }
    *out = ints;
    *count = k->count;
    return VF_OK;
}

enum vf_code vf_gguf_get_floats(const struct vf_gguf *g, struct vf_gguf_field f, float **out,
                                size_t *count, struct vf_err *err)
{
    const struct key *k = NULL;
    enum vf_code code = look_up(g, f, &k, err);
    if (code || !k)
        return code;
    if (k->type != VF_GGUF_ARRAY || k->element != VF_GGUF_F32)
        return wrong_type(g, k, "array of f32", err);
    float *floats = malloc((k->count + 1) * sizeof *floats);
    if (!floats)
        return no_memory(g, err);
    memcpy(floats, g->head + k->at, k->count * sizeof *floats);
    for (uint64_t i = 0; i < k->count; i++) {
        if (isfinite(floats[i]))
            continue;
        free(floats);
        return bad_key(g, f.key, err, "element %" PRIu64 " isn't finite", i);
    }
    *out = floats;
    *count = k->count;
    return VF_OK;
}

/* ---- tensors ---- */

size_t vf_gguf_tensor_count(const struct vf_gguf *g)
{
    return g->tensor_count;
}

const struct vf_gguf_tensor *vf_gguf_tensor(const struct vf_gguf *g, size_t i)
{
    return &g->tensors[i];
}

const struct vf_gguf_tensor *vf_gguf_find(const struct vf_gguf *g, const char *name)
{
    const struct vf_gguf_tensor wanted = {.name = name}, *key = &wanted;
    const struct vf_gguf_tensor **found =
        bsearch(&key, g->by_name, g->tensor_count, sizeof key, compare_names);
    return found ? *found : NULL;
}

enum vf_code vf_gguf_read(const struct vf_gguf *g, const struct vf_gguf_tensor *t, uint64_t begin,
                          void *buf, size_t n, struct vf_err *err)
{
    VF_ASSERT(begin <= t->bytes && n <= t->bytes - begin);
    return vf_pread_full(g->fd, buf, n, t->offset + begin, g->path, err);
}
