/* The writer and the reader of model files on models made here: large counts, awkward widths,
 * files beyond 4 GiB, the order of calls, refusals, and what is on disk at every moment.
 */
#include "common/base/util.h"
#include "common/format/layout.h"
#include "common/format/model_writer.h"
#include "tap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <xxhash.h>

static char dir[200];
static struct vf_err err;

static const char *in_dir(const char *name)
{
    static char path[4][512];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static int files_in_dir(const char *with)
{
    DIR *d = opendir(dir);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.' && strstr(e->d_name, with) != NULL;
    if (d)
        closedir(d);
    return n;
}

static void clean_dir(void)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.')
            unlink(in_dir(e->d_name));
    if (d)
        closedir(d);
}

static void leave(void)
{
    clean_dir();
    rmdir(dir);
}

/* format is a printf format for the rest of the keys, which override nothing. */
static struct vf_config make_config(const char *rest)
{
    char text[1024];
    snprintf(text, sizeof text,
             "{\"model_type\": \"pipeline_native\", \"combine_style\": \"delayed_sum\", "
             "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 16, "
             "\"hidden_act\": \"silu\", \"max_position_embeddings\": 64, %s}",
             rest);
    struct vf_config config = {0};
    json_t *obj = NULL;
    if (vf_json_parse(text, strlen(text), "test config", &obj, &err) ||
        vf_config_parse(obj, "test config", &config, &err)) {
        printf("not ok - %s\n", err.text);
        exit(1);
    }
    json_decref(obj);
    return config;
}

static struct vf_config small_config(void)
{
    return make_config("\"hidden_size\": 40, \"num_hidden_layers\": 3, \"intermediate_size\": 300, "
                       "\"num_experts\": 5, \"num_experts_per_tok\": 2, "
                       "\"moe_intermediate_size\": 72, \"vocab_size\": 200");
}

/* A weight from where it stands: any reader can recompute it. */
static float weight(struct vf_tensor_id id, uint64_t row, uint64_t col)
{
    uint64_t x = ((uint64_t)id.kind << 48) ^ ((uint64_t)(id.layer + 1) << 40) ^
                 ((uint64_t)id.expert << 24) ^ (row * 1000003u + col);
    x *= 0x9e3779b97f4a7c15ull;
    x ^= x >> 29;
    return (float)(int32_t)(uint32_t)x * 0x1p-31f;
}

static struct vf_tensor_spec *list_specs(const struct vf_config *config, size_t *count)
{
    struct vf_tensor_spec *specs = NULL;
    if (vf_tensors_list(config, true, &specs, count, &err))
        exit(1);
    return specs;
}

static float *make_rows(const struct vf_tensor_spec *s)
{
    float *rows = malloc((size_t)s->rows * s->cols * sizeof *rows);
    for (uint32_t r = 0; r < s->rows; r++)
        for (uint32_t c = 0; c < s->cols; c++)
            rows[(size_t)r * s->cols + c] = weight(s->id, r, c);
    return rows;
}

static enum vf_code put_whole(struct vf_model_writer *w, const struct vf_tensor_spec *s)
{
    float *rows = make_rows(s);
    enum vf_code code = vf_model_writer_put(w, s->id, 0, s->rows, rows, &err);
    free(rows);
    return code;
}

/* Stripe by stripe, 512 columns at a time. */
static enum vf_code put_blocks(struct vf_model_writer *w, const struct vf_tensor_spec *s)
{
    float *rows = make_rows(s);
    static float block[128 * 512];
    enum vf_code code = VF_OK;
    uint32_t step = s->is_vector ? s->cols : 512;
    for (uint32_t row = 0; row < s->rows && !code; row += 128) {
        uint32_t n = (uint32_t)vf_min_u64(128, s->rows - row);
        for (uint32_t col = 0; col < s->cols && !code; col += step) {
            uint32_t m = (uint32_t)vf_min_u64(step, s->cols - col);
            for (uint32_t r = 0; r < n; r++)
                memcpy(block + (size_t)r * m, rows + ((size_t)row + r) * s->cols + col,
                       m * sizeof *block);
            code = vf_model_writer_put_block(w, s->id, row, n, col, m, block, &err);
        }
    }
    free(rows);
    return code;
}

static struct vf_model_writer *create(const char *path, const struct vf_config *config,
                                      enum vf_file_format format, enum vf_quant quant)
{
    static const char tokenizer[] = "{\"model\": {}}";
    const struct vf_model_writer_params params = {
        .path = path,
        .format = format,
        .quant = quant,
        .config = config,
        .tokenizer = tokenizer,
        .tokenizer_bytes = sizeof tokenizer - 1,
    };
    struct vf_model_writer *w = NULL;
    vf_model_writer_create(&params, &w, &err);
    return w;
}

/* Writes a whole model; reversed: tensors last to first, block by block. */
static enum vf_code write_model(const char *path, const struct vf_config *config,
                                enum vf_file_format format, enum vf_quant quant, bool reversed)
{
    struct vf_model_writer *w = create(path, config, format, quant);
    if (!w)
        return err.code;
    size_t count;
    struct vf_tensor_spec *specs = list_specs(config, &count);
    enum vf_code code = VF_OK;
    for (size_t i = 0; i < count && !code; i++)
        code = reversed ? put_blocks(w, &specs[count - 1 - i]) : put_whole(w, &specs[i]);
    if (!code)
        code = vf_model_writer_finish(w, &err);
    vf_model_writer_destroy(w);
    free(specs);
    return code;
}

static struct vf_model_file *open_model(const char *path)
{
    struct vf_model_file *f = NULL;
    if (vf_model_file_open(path, &f, &err))
        note("%s", err.text);
    return f;
}

/* ---- the cases ---- */

static bool matrix_is(const struct vf_matrix *m, struct vf_tensor_id id)
{
    float *row = malloc((size_t)m->cols * sizeof *row);
    bool same = true;
    for (uint32_t r = 0; r < m->rows && same; r++) {
        vf_tile_unpack_row(m, r, row);
        for (uint32_t c = 0; c < m->cols && same; c++)
            same = row[c] == weight(id, r, c);
    }
    free(row);
    return same;
}

/* With f32 matrices everything comes back as it went in. */
static void test_round_trip(enum vf_file_format format)
{
    struct vf_config config = small_config();
    const char *path = in_dir("round");
    ok(write_model(path, &config, format, VF_QUANT_F32, false) == VF_OK, "a model is written");
    struct vf_model_file *f = open_model(path);
    size_t count, wrong = 0, bytes = 0;
    struct vf_tensor_spec *specs = list_specs(&config, &count);
    for (size_t i = 0; i < count && f; i++) {
        struct vf_matrix m, parts[3];
        struct vf_tensor_id id = specs[i].id;
        if (specs[i].is_vector) {
            const float *v = vf_model_file_vector(f, id);
            for (uint32_t c = 0; v && c < specs[i].cols; c++)
                wrong += v[c] != weight(id, 0, c);
            wrong += !v || (uintptr_t)v % 64;
            continue;
        }
        if (vf_tensor_is_expert(id.kind)) {
            vf_expert_matrices(f, vf_model_file_expert_data(f, id.layer, id.expert), &parts[0],
                               &parts[1], &parts[2]);
            m = parts[id.kind - VF_T_EXPERT_GATE];
        } else if (!vf_model_file_matrix(f, id, &m)) {
            wrong++;
            continue;
        }
        wrong += m.rows != specs[i].rows || m.cols != specs[i].cols || (uintptr_t)m.data % 64 ||
                 !matrix_is(&m, id);
    }
    ok(f && wrong == 0, "%s: %zu tensors come back exactly",
       format == VF_FORMAT_CFLOW ? "cflow" : "vflow", count);
    ok(f && memcmp(vf_model_file_tokenizer(f, &bytes), "{\"model\": {}}", 13) == 0 && bytes == 13,
       "so does the tokenizer");
    struct vf_matrix m;
    ok(f && !vf_model_file_matrix(f, (struct vf_tensor_id){VF_T_Q, 3, 0, 0}, &m) &&
           !vf_model_file_matrix(f, (struct vf_tensor_id){VF_T_Q, 0, 1, 0}, &m) &&
           !vf_model_file_matrix(f, (struct vf_tensor_id){VF_T_ATTN_NORM, 0, 0, 0}, &m) &&
           !vf_model_file_vector(f, (struct vf_tensor_id){VF_T_Q, 0, 0, 0}) &&
           !vf_model_file_vector(f, (struct vf_tensor_id){VF_T_Q_NORM, 0, 0, 0}),
       "tensors that the model lacks aren't found");
    vf_model_file_close(f);
    vf_config_deinit(&config);
    free(specs);
    clean_dir();
}

static bool same_files(const char *a, const char *b)
{
    char *x = NULL, *y = NULL;
    size_t n = 0, m = 1;
    bool same = !vf_read_file(a, 1 << 28, &x, &n, &err) &&
                !vf_read_file(b, 1 << 28, &y, &m, &err) && n == m && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

static void test_order_of_calls(void)
{
    struct vf_config config = small_config();
    int good = 1;
    for (int quant = 0; quant < VF_QUANT_COUNT; quant++)
        good &= !write_model(in_dir("a"), &config, VF_FORMAT_VFLOW, quant, false) &&
                !write_model(in_dir("b"), &config, VF_FORMAT_VFLOW, quant, true) &&
                same_files(in_dir("a"), in_dir("b"));
    ok(good, "whole tensors in order and blocks in reverse order give the same bytes");
    vf_config_deinit(&config);
    clean_dir();
}

static void test_many_experts(void)
{
    struct vf_config config = make_config(
        "\"hidden_size\": 32, \"num_hidden_layers\": 2, \"intermediate_size\": 0, "
        "\"num_experts\": 4100, \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 16, "
        "\"vocab_size\": 64, \"tie_word_embeddings\": true");
    ok(!write_model(in_dir("many"), &config, VF_FORMAT_VFLOW, VF_QUANT_Q4, false),
       "2 x 4100 experts are written %s", err.text);
    struct vf_model_file *f = open_model(in_dir("many"));
    int wrong = 0;
    uint64_t end = 0;
    for (uint32_t layer = 0; f && layer < 2; layer++) {
        for (uint32_t e = 0; e < 4100; e++) {
            struct vf_expert_extent x = vf_model_file_expert(f, layer, e);
            wrong += x.offset % VF_EXPERT_ALIGN != 0 || x.bytes % VF_EXPERT_ALIGN != 0 ||
                     x.offset < end || x.offset + x.bytes > vf_model_file_bytes(f);
            end = x.offset + x.bytes;
            if (e % 97 == 0 || e == 4099)
                wrong += vf_model_file_verify_expert(
                             f, layer, e, vf_model_file_expert_data(f, layer, e), &err) != VF_OK;
        }
    }
    ok(f && wrong == 0, "each has its own aligned record, in order, and its checksum");
    vf_model_file_close(f);
    vf_config_deinit(&config);
    clean_dir();
}

/* A flipped bit in tile 3 of 70,001 columns, between open and verify. */
static void check_broken_tile(const char *path, struct vf_tensor_id id, uint64_t offset)
{
    uint8_t byte = 0;
    int fd = open(path, O_RDWR);
    vf_pread_full(fd, &byte, 1, offset, path, &err);
    byte ^= 4;
    vf_pwrite_full(fd, &byte, 1, offset, path, &err);
    close(fd);
    struct vf_model_file *f = open_model(path);
    ok(f && vf_model_file_verify_tensor(f, id, &err) == VF_ERR_CORRUPT &&
           strstr(err.text, "layer 0 down_proj") && strstr(err.text, "row 0, column 768"),
       "a flipped bit is found in its tile: %s", err.text);
    vf_model_file_close(f);
}

static void test_wide(void)
{
    struct vf_config config =
        make_config("\"hidden_size\": 32, \"num_hidden_layers\": 1, \"intermediate_size\": 70001, "
                    "\"vocab_size\": 64, \"tie_word_embeddings\": true");
    ok(!write_model(in_dir("wide"), &config, VF_FORMAT_CFLOW, VF_QUANT_F32, true) &&
           !write_model(in_dir("wide2"), &config, VF_FORMAT_CFLOW, VF_QUANT_F32, false) &&
           same_files(in_dir("wide"), in_dir("wide2")),
       "70,001 columns are written in blocks and whole alike %s", err.text);
    struct vf_model_file *f = open_model(in_dir("wide"));
    const struct vf_tensor_id down = {VF_T_DOWN, 0, 0, 0};
    struct vf_matrix m = {0};
    ok(f && vf_model_file_matrix(f, down, &m) && m.cols == 70001 && matrix_is(&m, down) &&
           !vf_model_file_verify_tensor(f, down, &err),
       "and come back exactly");
    uint64_t tile3 = 0;
    for (size_t i = 0; f && i < vf_model_file_tensor_count(f); i++)
        if (vf_model_file_tensor(f, i).spec.id.kind == VF_T_DOWN)
            tile3 = vf_model_file_tile(f, i, 3).offset;
    vf_model_file_close(f);
    check_broken_tile(in_dir("wide"), down, tile3 + 77);
    vf_config_deinit(&config);
    clean_dir();
}

static void test_layout_of_giants(void)
{
    struct vf_config config =
        make_config("\"hidden_size\": 32, \"num_hidden_layers\": 1, \"intermediate_size\": 32, "
                    "\"vocab_size\": 2147483648");
    struct vf_layout l;
    enum vf_code code = vf_layout_init(&config, VF_FORMAT_VFLOW, VF_QUANT_Q4, 1000, 0, &l, &err);
    const uint64_t table = (1ull << 27) * 288; /* 2^31 rows are 2^27 row blocks of one record */
    const struct vf_disk_tensor *head =
        code ? NULL : vf_layout_find(&l, (struct vf_tensor_id){VF_T_HEAD, VF_LAYER_NONE, 0, 0});
    ok(head && head->bytes == table && head->rows == 1u << 31 && head->offset > table &&
           head->tile_count == 1u << 24 && l.file_bytes > 2 * table,
       "2^31 vocabulary rows have their place");
    struct vf_tile_place last = vf_tile_locate(VF_QUANT_Q4, 1u << 31, 32, (1u << 24) - 1);
    ok(last.row == (1u << 31) - 128 && last.offset + last.bytes == table, "down to the last tile");
    if (!code)
        vf_layout_deinit(&l);
    vf_config_deinit(&config);
}

static void put_section(int fd, const struct vf_layout *l, struct vf_disk_header *h,
                        enum vf_section_kind kind, const void *data)
{
    h->sections[kind - 1].xxh3 = XXH3_64bits(data, l->sections[kind].bytes);
    vf_pwrite_full(fd, data, l->sections[kind].bytes, l->sections[kind].offset, "test", &err);
}

/* A sparse file whose layer begins beyond 4 GiB: the tables by hand, the last matrix with data. */
static void write_sparse(const char *path, const struct vf_config *config, struct vf_layout *l,
                         const char *config_text)
{
    struct vf_disk_header h = {.version = VF_FILE_VERSION,
                               .header_bytes = VF_FILE_HEADER_BYTES,
                               .file_bytes = l->file_bytes,
                               .tile_rows = 128,
                               .tile_cols = 256,
                               .record_rows = 16,
                               .record_cols = 32,
                               .quant = VF_QUANT_F32,
                               .section_count = VF_SECTION_COUNT,
                               .tile_count = l->tile_count};
    memcpy(h.magic, vf_file_magic[VF_FORMAT_VFLOW], sizeof h.magic);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (ftruncate(fd, (off_t)l->file_bytes) != 0)
        note("%s", strerror(errno));
    struct vf_disk_tensor *down =
        vf_layout_find(l, (struct vf_tensor_id){VF_T_DOWN, config->layer_count - 1, 0, 0});
    const struct vf_tensor_spec spec = {
        .id = {VF_T_DOWN, config->layer_count - 1, 0, 0}, .rows = down->rows, .cols = down->cols};
    float *rows = make_rows(&spec);
    uint8_t *packed = malloc(down->bytes);
    vf_tile_pack_rows(VF_QUANT_F32, down->rows, down->cols, 0, down->rows, rows, packed);
    down->xxh3 = XXH3_64bits(packed, down->bytes);
    vf_pwrite_full(fd, packed, down->bytes, down->offset, path, &err);
    char *zeros = calloc(1, l->sections[VF_SECTION_VECTORS].bytes);
    put_section(fd, l, &h, VF_SECTION_CONFIG, config_text);
    put_section(fd, l, &h, VF_SECTION_TOKENIZER, "");
    put_section(fd, l, &h, VF_SECTION_TENSORS, l->tensors);
    put_section(fd, l, &h, VF_SECTION_GROUPS, l->groups);
    put_section(fd, l, &h, VF_SECTION_EXPERTS, "");
    put_section(fd, l, &h, VF_SECTION_VECTORS, zeros);
    for (unsigned kind = 1; kind <= VF_SECTION_COUNT; kind++) {
        h.sections[kind - 1].kind = kind;
        h.sections[kind - 1].offset = l->sections[kind].offset;
        h.sections[kind - 1].bytes = l->sections[kind].bytes;
    }
    h.xxh3 = XXH3_64bits(&h, offsetof(struct vf_disk_header, xxh3));
    vf_pwrite_full(fd, &h, sizeof h, 0, path, &err);
    close(fd);
    free(zeros);
    free(packed);
    free(rows);
}

static void test_beyond_4_gib(void)
{
    struct vf_config config =
        make_config("\"hidden_size\": 64, \"num_hidden_layers\": 1, \"intermediate_size\": 96, "
                    "\"vocab_size\": 20000000, \"tie_word_embeddings\": true");
    json_t *obj = vf_config_to_json(&config);
    char *text = json_dumps(obj, JSON_COMPACT | JSON_SORT_KEYS);
    struct vf_layout l;
    vf_layout_init(&config, VF_FORMAT_VFLOW, VF_QUANT_F32, strlen(text), 0, &l, &err);
    write_sparse(in_dir("sparse"), &config, &l, text);
    struct vf_model_file *f = open_model(in_dir("sparse"));
    const struct vf_tensor_id down = {VF_T_DOWN, 0, 0, 0};
    struct vf_matrix m = {0};
    ok(f && vf_model_file_bytes(f) > 4ull << 30, "a file of %.1f GiB opens",
       (double)l.file_bytes / (1 << 30));
    ok(f && vf_model_file_matrix(f, down, &m) && matrix_is(&m, down) &&
           !vf_model_file_verify_tensor(f, down, &err),
       "and a matrix behind 4 GiB is right");
    vf_model_file_close(f);
    vf_layout_deinit(&l);
    vf_config_deinit(&config);
    json_decref(obj);
    free(text);
    clean_dir();
}

/* ---- refusals ---- */

static void check_refused(float value, enum vf_quant quant, bool refused, const char *what)
{
    struct vf_config config = small_config();
    struct vf_model_writer *w = create(in_dir("bad"), &config, VF_FORMAT_VFLOW, quant);
    const struct vf_tensor_spec spec = {.id = {VF_T_DOWN, 1, 0, 0}, .rows = 40, .cols = 300};
    float *rows = make_rows(&spec);
    rows[17 * 300 + 299] = value;
    err.text[0] = 0;
    enum vf_code code = vf_model_writer_put(w, spec.id, 0, 40, rows, &err);
    if (refused)
        ok(code == VF_ERR_CORRUPT && strstr(err.text, "layer 1 down_proj") &&
               strstr(err.text, "row 17, column 299"),
           "%s in %s is refused: %s", what, vf_quant_name(quant), err.text);
    else
        ok(code == VF_OK, "%s in %s is accepted %s", what, vf_quant_name(quant), err.text);
    vf_model_writer_destroy(w);
    free(rows);
    vf_config_deinit(&config);
}

static void test_refusals(void)
{
    check_refused(NAN, VF_QUANT_Q4, true, "NaN");
    check_refused(NAN, VF_QUANT_F32, true, "NaN");
    check_refused(INFINITY, VF_QUANT_F32, true, "infinity");
    check_refused(-INFINITY, VF_QUANT_Q8, true, "-infinity");
    check_refused(65519.0f, VF_QUANT_F16, false, "65519");
    check_refused(-65520.0f, VF_QUANT_F16, true, "-65520");
    check_refused(458639.0f, VF_QUANT_Q4, false, "458639");
    check_refused(458640.0f, VF_QUANT_Q4, true, "458640");
    check_refused(8321040.0f, VF_QUANT_Q8, true, "8321040");
    check_refused(3e38f, VF_QUANT_F32, false, "3e38");
    ok(files_in_dir("") == 0, "refusing leaves no file");
}

static void test_misuse(void)
{
    struct vf_config config = small_config();
    struct vf_model_writer *w = create(in_dir("misuse"), &config, VF_FORMAT_VFLOW, VF_QUANT_Q4);
    const struct vf_tensor_spec up = {.id = {VF_T_UP, 0, 0, 0}, .rows = 300, .cols = 40};
    float *rows = make_rows(&up);
    ok(vf_model_writer_put(w, up.id, 128, 128, rows, &err) == VF_ERR_INTERNAL,
       "a tensor that begins in the middle: %s", err.text);
    vf_model_writer_destroy(w);
    w = create(in_dir("misuse"), &config, VF_FORMAT_VFLOW, VF_QUANT_Q4);
    ok(!vf_model_writer_put(w, up.id, 0, 128, rows, &err) &&
           vf_model_writer_put(w, (struct vf_tensor_id){VF_T_GATE, 0, 0, 0}, 0, 128, rows, &err) ==
               VF_ERR_INTERNAL,
       "another tensor before the first is complete: %s", err.text);
    ok(!vf_model_writer_put(w, up.id, 128, 172, rows + 128 * 40, &err) &&
           vf_model_writer_put(w, up.id, 0, 128, rows, &err) == VF_ERR_INTERNAL,
       "the same tensor twice: %s", err.text);
    ok(vf_model_writer_finish(w, &err) == VF_ERR_INTERNAL, "an incomplete model: %s", err.text);
    vf_model_writer_destroy(w);
    ok(files_in_dir("") == 0, "leaves no file");
    free(rows);
    vf_config_deinit(&config);
}

/* ---- what is on disk ---- */

static void test_atomic_replace(void)
{
    struct vf_config config = small_config();
    const char *path = in_dir("model.vflow");
    struct stat st;
    FILE *old = fopen(path, "w");
    fputs("old", old);
    fclose(old);
    struct vf_model_writer *w = create(path, &config, VF_FORMAT_VFLOW, VF_QUANT_Q4);
    size_t count;
    struct vf_tensor_spec *specs = list_specs(&config, &count);
    for (size_t i = 0; i < count / 2; i++)
        put_whole(w, &specs[i]);
    ok(stat(path, &st) == 0 && st.st_size == 3 && files_in_dir("model.vflow.part-") == 1,
       "while a model is written the old file stands, the new one has another name");
    vf_model_writer_destroy(w);
    ok(stat(path, &st) == 0 && st.st_size == 3 && files_in_dir("part") == 0,
       "giving up leaves the old file alone");
    mode_t mask = umask(027);
    chmod(path, 0604);
    ok(!write_model(path, &config, VF_FORMAT_VFLOW, VF_QUANT_Q4, false) && stat(path, &st) == 0 &&
           st.st_size > 3 && files_in_dir("") == 1 && (st.st_mode & 0777) == 0604,
       "finishing replaces it and keeps its mode");
    umask(mask);
    free(specs);
    vf_config_deinit(&config);
    clean_dir();
}

static void test_kill(void)
{
    struct vf_config config = small_config();
    const char *path = in_dir("model.vflow");
    int ready[2];
    if (pipe(ready) != 0)
        exit(1);
    pid_t child = fork();
    if (child == 0) {
        struct vf_model_writer *w = create(path, &config, VF_FORMAT_VFLOW, VF_QUANT_Q4);
        size_t count;
        struct vf_tensor_spec *specs = list_specs(&config, &count);
        for (size_t i = 0; i + 1 < count; i++)
            put_whole(w, &specs[i]);
        ssize_t sent = write(ready[1], "x", 1);
        (void)sent;
        pause();
        _exit(1);
    }
    close(ready[1]);
    char byte;
    ssize_t got = read(ready[0], &byte, 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(ready[0]);
    ok(got == 1 && access(path, F_OK) != 0 && files_in_dir("part") == 1,
       "SIGKILL in the middle leaves no file under the final name");
    vf_config_deinit(&config);
    clean_dir();
}

static void test_no_directory(void)
{
    struct vf_config config = small_config();
    struct vf_model_writer *w =
        create(in_dir("no/such/place"), &config, VF_FORMAT_VFLOW, VF_QUANT_Q4);
    ok(!w && err.code == VF_ERR_IO, "a directory that doesn't exist: %s", err.text);
    vf_config_deinit(&config);
}

int main(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/vflow-test-XXXXXX", base ? base : P_tmpdir);
    if (!mkdtemp(dir))
        skip_all("no temporary directory");
    atexit(leave);
    plan(8 + 1 + 2 + 3 + 2 + 2 + 11 + 5 + 3 + 1 + 1);
    test_round_trip(VF_FORMAT_VFLOW);
    test_round_trip(VF_FORMAT_CFLOW);
    test_order_of_calls();
    test_many_experts();
    test_wide();
    test_layout_of_giants();
    test_beyond_4_gib();
    test_refusals();
    test_misuse();
    test_atomic_replace();
    test_kill();
    test_no_directory();
    return 0;
}
