/* The reader's getters over every type of value, at the edges of their ranges, and the two writers
 * against the reader. The input is put together by hand here; broken files are test_bad_gguf.py's.
 */
#include "bench/models/gguf_writer.h"
#include "common/base/util.h"
#include "common/format/gguf.h"
#include "common/format/gguf_model.h"
#include "tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static char dir[] = "/tmp/vflow-test-XXXXXX";
static char path[128];
static struct vf_err err;

/* ---- a file by hand ---- */

struct bytes {
    uint8_t v[4096];
    size_t n;
};

static void add(struct bytes *b, const void *data, size_t n)
{
    memcpy(b->v + b->n, data, n);
    b->n += n;
}

static void add_number(struct bytes *b, uint64_t v, size_t n)
{
    add(b, &v, n); /* little-endian, as this machine is */
}

static void add_string(struct bytes *b, const char *s)
{
    add_number(b, strlen(s), 8);
    add(b, s, strlen(s));
}

static void add_key(struct bytes *b, const char *key, uint32_t type)
{
    add_string(b, key);
    add_number(b, type, 4);
}

static void add_scalar(struct bytes *b, const char *key, uint32_t type, uint64_t bits, size_t n)
{
    add_key(b, key, type);
    add_number(b, bits, n);
}

static uint64_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static uint64_t double_bits(double f)
{
    uint64_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static void save(const struct bytes *b)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(b->v, 1, b->n, f) != b->n || fclose(f) != 0)
        exit(2);
}

#define KEYS 17u

static void write_by_hand(void)
{
    struct bytes b = {.n = 0};
    add(&b, "GGUF", 4);
    add_number(&b, 3, 4);
    add_number(&b, 1, 8);
    add_number(&b, KEYS, 8);
    add_scalar(&b, "u8", 0, 255, 1);
    add_scalar(&b, "i8", 1, (uint8_t)-128, 1);
    add_scalar(&b, "u16", 2, 65535, 2);
    add_scalar(&b, "i16", 3, (uint16_t)-5, 2);
    add_scalar(&b, "u32", 4, 0xffffffffu, 4);
    add_scalar(&b, "i32", 5, (uint32_t)-1, 4);
    add_scalar(&b, "f32", 6, float_bits(-1.25f), 4);
    add_scalar(&b, "bool", 7, 1, 1);
    add_key(&b, "string", 8);
    add_string(&b, "text");
    add_scalar(&b, "u64", 10, UINT64_MAX, 8);
    add_scalar(&b, "i64", 11, (uint64_t)INT64_MIN, 8);
    add_scalar(&b, "f64", 12, double_bits(1e300), 8);
    add_scalar(&b, "nan", 6, float_bits(NAN), 4);
    add_key(&b, "strings", 9);
    add_number(&b, 8, 4);
    add_number(&b, 3, 8);
    add_string(&b, "");
    add_string(&b, "one");
    add_string(&b, "\xc3\xbc");
    add_key(&b, "ints", 9);
    add_number(&b, 3, 4); /* i16 */
    add_number(&b, 2, 8);
    add_number(&b, (uint16_t)-32768, 2);
    add_number(&b, 32767, 2);
    add_key(&b, "large", 9);
    add_number(&b, 10, 4); /* u64 */
    add_number(&b, 1, 8);
    add_number(&b, 1ull << 31, 8);
    add_key(&b, "floats", 9);
    add_number(&b, 6, 4);
    add_number(&b, 2, 8);
    add_number(&b, float_bits(0.5f), 4);
    add_number(&b, float_bits(INFINITY), 4);
    add_string(&b, "w");
    add_number(&b, 2, 4);
    add_number(&b, 32, 8);
    add_number(&b, 2, 8);
    add_number(&b, 8, 4); /* Q8_0 */
    add_number(&b, 32, 8);
    while (b.n % 32)
        add_number(&b, 0, 1);
    for (int i = 0; i < 32 + 68; i++)
        add_number(&b, (uint64_t)i, 1);
    save(&b);
}

/* ---- getters ---- */

static bool uint_is(const struct vf_gguf *g, const char *key, uint64_t max, enum vf_code code,
                    uint64_t want)
{
    uint64_t v = 77;
    err.text[0] = 0;
    enum vf_code got = vf_gguf_get_uint(g, (struct vf_gguf_field){key, true}, 0, max, &v, &err);
    return got == code && v == (code ? 77 : want) && (!code || strstr(err.text, key));
}

static void test_scalars(const struct vf_gguf *g)
{
    ok(uint_is(g, "u8", 255, VF_OK, 255) && uint_is(g, "u16", 65535, VF_OK, 65535) &&
           uint_is(g, "u32", UINT32_MAX, VF_OK, UINT32_MAX) &&
           uint_is(g, "u64", UINT64_MAX, VF_OK, UINT64_MAX),
       "unsigned integers at their largest");
    ok(uint_is(g, "u8", 254, VF_ERR_CORRUPT, 0) && uint_is(g, "u64", 1ull << 62, VF_ERR_CORRUPT, 0),
       "above what is allowed");
    ok(uint_is(g, "i8", 255, VF_ERR_CORRUPT, 0) && strstr(err.text, "-128") &&
           uint_is(g, "i16", 255, VF_ERR_CORRUPT, 0) && strstr(err.text, "-5,") &&
           uint_is(g, "i64", UINT64_MAX, VF_ERR_CORRUPT, 0) &&
           strstr(err.text, "-9223372036854775808"),
       "negative integers are named and refused");
    ok(uint_is(g, "f32", 9, VF_ERR_CORRUPT, 0) && uint_is(g, "bool", 9, VF_ERR_CORRUPT, 0) &&
           uint_is(g, "string", 9, VF_ERR_CORRUPT, 0) && uint_is(g, "ints", 9, VF_ERR_CORRUPT, 0),
       "other types aren't integers");
    double real = 0;
    ok(vf_gguf_get_real(g, (struct vf_gguf_field){"f32", true}, -2, 2, &real, &err) == VF_OK &&
           real == -1.25,
       "f32");
    ok(vf_gguf_get_real(g, (struct vf_gguf_field){"f64", true}, 0, 1e301, &real, &err) == VF_OK &&
           real == 1e300,
       "f64");
    ok(vf_gguf_get_real(g, (struct vf_gguf_field){"nan", true}, -1e308, 1e308, &real, &err) ==
               VF_ERR_CORRUPT &&
           vf_gguf_get_real(g, (struct vf_gguf_field){"u8", true}, 0, 1e9, &real, &err) ==
               VF_ERR_CORRUPT,
       "a NaN and an integer aren't");
    bool flag = false;
    const char *text = NULL;
    ok(vf_gguf_get_bool(g, (struct vf_gguf_field){"bool", true}, &flag, &err) == VF_OK && flag &&
           vf_gguf_get_bool(g, (struct vf_gguf_field){"u8", true}, &flag, &err) == VF_ERR_CORRUPT,
       "bool");
    ok(vf_gguf_get_string(g, (struct vf_gguf_field){"string", true}, &text, &err) == VF_OK &&
           strcmp(text, "text") == 0 &&
           vf_gguf_get_string(g, (struct vf_gguf_field){"strings", true}, &text, &err) ==
               VF_ERR_CORRUPT,
       "string");
    uint64_t kept = 5;
    ok(vf_gguf_get_uint(g, (struct vf_gguf_field){"none", false}, 0, 9, &kept, &err) == VF_OK &&
           kept == 5 &&
           vf_gguf_get_uint(g, (struct vf_gguf_field){"none", true}, 0, 9, &kept, &err) ==
               VF_ERR_CORRUPT,
       "a missing key, allowed and not");
}

static void test_arrays(const struct vf_gguf *g)
{
    struct vf_gguf_string *strings = NULL;
    int32_t *ints = NULL;
    float *floats = NULL;
    size_t n = 0;
    ok(vf_gguf_get_strings(g, (struct vf_gguf_field){"strings", true}, &strings, &n, &err) ==
               VF_OK &&
           n == 3 && strings[0].n == 0 && strings[1].n == 3 &&
           memcmp(strings[1].s, "one", 3) == 0 && strings[2].n == 2,
       "array of strings");
    ok(vf_gguf_get_ints(g, (struct vf_gguf_field){"ints", true}, &ints, &n, &err) == VF_OK &&
           n == 2 && ints[0] == -32768 && ints[1] == 32767,
       "array of i16");
    free(strings);
    free(ints);
    ints = NULL;
    ok(vf_gguf_get_ints(g, (struct vf_gguf_field){"large", true}, &ints, &n, &err) ==
               VF_ERR_CORRUPT &&
           vf_gguf_get_ints(g, (struct vf_gguf_field){"floats", true}, &ints, &n, &err) ==
               VF_ERR_CORRUPT &&
           vf_gguf_get_ints(g, (struct vf_gguf_field){"u8", true}, &ints, &n, &err) ==
               VF_ERR_CORRUPT &&
           !ints,
       "numbers beyond int32, floats and scalars aren't");
    ok(vf_gguf_get_floats(g, (struct vf_gguf_field){"floats", true}, &floats, &n, &err) ==
               VF_ERR_CORRUPT &&
           vf_gguf_get_floats(g, (struct vf_gguf_field){"ints", true}, &floats, &n, &err) ==
               VF_ERR_CORRUPT &&
           vf_gguf_get_strings(g, (struct vf_gguf_field){"ints", true}, &strings, &n, &err) ==
               VF_ERR_CORRUPT &&
           !floats,
       "an infinity, and arrays of another type");
}

static void test_tensor(const struct vf_gguf *g)
{
    const struct vf_gguf_tensor *t = vf_gguf_find(g, "w");
    uint8_t data[3] = {0};
    ok(vf_gguf_tensor_count(g) == 1 && t == vf_gguf_tensor(g, 0) && !vf_gguf_find(g, "x") &&
           t->type == VF_GGML_Q8_0 && t->rank == 2 && t->dims[0] == 32 && t->dims[1] == 2 &&
           t->dims[2] == 1 && t->bytes == 68,
       "a tensor's description");
    ok(vf_gguf_read(g, t, 65, data, 3, &err) == VF_OK && data[0] == 32 + 65 && data[2] == 32 + 67,
       "its last bytes");
    bool sorted = vf_gguf_key_count(g) == KEYS && vf_gguf_has(g, "nan") && !vf_gguf_has(g, "na");
    for (size_t i = 1; i < vf_gguf_key_count(g); i++)
        sorted &= strcmp(vf_gguf_key(g, i - 1), vf_gguf_key(g, i)) < 0;
    ok(sorted, "keys in order");
}

/* ---- the writer ---- */

static void test_writer(void)
{
    static const char *const words[] = {"a", "", "longer"};
    static const float halves[] = {0.5f, -0.5f};
    static const int32_t ints[] = {-1, 7};
    const uint64_t dims_a[] = {64, 3}, dims_b[] = {5};
    struct vf_gguf_writer *w = NULL;
    struct vf_gguf *g = NULL;
    uint8_t row[36], back[36];
    float five[5] = {1, 2, 3, 4, 5}, five_back[5];
    for (size_t i = 0; i < sizeof row; i++)
        row[i] = (uint8_t)(i * 7);
    bool good = vf_gguf_writer_create(path, &w, &err) == VF_OK;
    vf_gguf_writer_put_string(w, "s", "x");
    vf_gguf_writer_put_u32(w, "u", 9);
    vf_gguf_writer_put_f32(w, "f", 0.1f);
    vf_gguf_writer_put_bool(w, "b", true);
    vf_gguf_writer_put_strings(w, "words", words, 3);
    vf_gguf_writer_put_f32s(w, "halves", halves, 2);
    vf_gguf_writer_put_i32s(w, "ints", ints, 2);
    size_t a = vf_gguf_writer_add_tensor(w, "a", VF_GGML_Q4_0, dims_a, 2);
    size_t b = vf_gguf_writer_add_tensor(w, "b", VF_GGML_F32, dims_b, 1);
    good = good && vf_gguf_writer_begin_data(w, &err) == VF_OK &&
           vf_gguf_writer_write(w, b, 0, five, sizeof five, &err) == VF_OK &&
           vf_gguf_writer_write(w, a, 36, row, sizeof row, &err) == VF_OK &&
           vf_gguf_writer_finish(w, &err) == VF_OK;
    vf_gguf_writer_destroy(w);
    good = good && vf_gguf_open(path, &g, &err) == VF_OK;
    if (!ok(good && vf_gguf_key_count(g) == 7 && vf_gguf_tensor_count(g) == 2,
            "a written file is read"))
        note("%s", err.text);
    int32_t *read_ints = NULL;
    float *read_floats = NULL;
    size_t n = 0, m = 0;
    ok(good &&
           vf_gguf_get_ints(g, (struct vf_gguf_field){"ints", true}, &read_ints, &n, &err) ==
               VF_OK &&
           vf_gguf_get_floats(g, (struct vf_gguf_field){"halves", true}, &read_floats, &m, &err) ==
               VF_OK &&
           n == 2 && m == 2 && read_ints[0] == -1 && read_floats[1] == -0.5f,
       "its arrays come back");
    ok(good && vf_gguf_read(g, vf_gguf_find(g, "a"), 36, back, sizeof back, &err) == VF_OK &&
           memcmp(row, back, sizeof row) == 0 &&
           vf_gguf_read(g, vf_gguf_find(g, "b"), 0, five_back, sizeof five_back, &err) == VF_OK &&
           memcmp(five, five_back, sizeof five) == 0,
       "so do its tensors");
    free(read_ints);
    free(read_floats);
    vf_gguf_close(g);
}

/* A head's first half goes to the even rows, its second half to the odd ones. */
static void test_rows(void)
{
    const struct vf_gguf_arch *llama = vf_gguf_arch_find("llama");
    const struct vf_gguf_arch *qwen3 = vf_gguf_arch_find("qwen3");
    struct vf_config config = {.head_dim = 6};
    static const uint32_t wanted[12] = {0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11};
    bool same = true;
    for (uint32_t r = 0; r < 12; r++) {
        same &= vf_gguf_row(llama, &config, VF_T_Q, r) == wanted[r];
        same &= vf_gguf_row(llama, &config, VF_T_K, r) == wanted[r];
        same &= vf_gguf_row(llama, &config, VF_T_V, r) == r;
        same &= vf_gguf_row(qwen3, &config, VF_T_Q, r) == r;
    }
    ok(same, "rows of q and k in llama's order");
    ok(!vf_gguf_arch_find("llam") && !vf_gguf_arch_find(""), "unknown architectures");
}

int main(void)
{
    struct vf_gguf *g = NULL;
    if (!mkdtemp(dir))
        return 2;
    snprintf(path, sizeof path, "%s/t.gguf", dir);
    plan(23);
    write_by_hand();
    if (!ok(vf_gguf_open(path, &g, &err) == VF_OK, "a file put together by hand opens"))
        note("%s", err.text);
    if (g) {
        test_scalars(g);
        test_arrays(g);
        test_tensor(g);
    }
    vf_gguf_close(g);
    test_writer();
    test_rows();
    unlink(path);
    rmdir(dir);
    return 0;
}
