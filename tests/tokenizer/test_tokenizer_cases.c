/* Token-exact against the reference library: every recorded text gives its ids (with and without
 * special tokens) and its decoded text, whole and streamed. The shared tokenizers are joined by
 * variants of them, which cover the other kinds of every component (see make_variants.js). */
#include "streamed.h"
#include "tap.h"

struct tally {
    int lines, wrong_ids, wrong_special, wrong_text, wrong_stream, wrong_skip;
};

static bool same_ids(const json_t *want, const uint32_t *ids, size_t n)
{
    if (!json_is_array(want) || json_array_size(want) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (json_integer_value(json_array_get(want, i)) != (json_int_t)ids[i])
            return false;
    return true;
}

static bool same_text(const json_t *want, const char *s, size_t n)
{
    return json_is_string(want) && json_string_length(want) == n &&
           memcmp(json_string_value(want), s, n) == 0;
}

static bool encodes_to(const struct vf_tokenizer *t, const json_t *text, bool special,
                       const json_t *want)
{
    struct vf_err err = {0};
    uint32_t *ids;
    size_t n;
    if (vf_tokenizer_encode(t, json_string_value(text), json_string_length(text), special, &ids, &n,
                            &err) != VF_OK) {
        note("encode: %s", err.text);
        return false;
    }
    bool same = same_ids(want, ids, n);
    if (!same) {
        struct str got = {0};
        char number[32];
        for (size_t i = 0; i < n && i < 40; i++)
            str_add(&got, number, (size_t)snprintf(number, sizeof(number), " %u", ids[i]));
        char *wanted = json_dumps(want, JSON_COMPACT);
        note("text %.200s: want %.300s, got%s", json_string_value(text), wanted, got.s);
        free(wanted);
        free(got.s);
    }
    free(ids);
    return same;
}

static void check_decoded(const struct vf_tokenizer *t, const json_t *line, bool skip_special,
                          const json_t *want, int *wrong_text, int *wrong_stream)
{
    struct vf_err err = {0};
    const json_t *list = json_object_get(line, "ids_with_special");
    const json_t *bare = json_object_get(line, "ids");
    list = skip_special ? list : bare;
    size_t n = json_array_size(list), n_text = 0;
    uint32_t *ids = malloc((n + 1) * sizeof(*ids));
    for (size_t i = 0; i < n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    char *text = NULL;
    struct str got = {0};
    bool decoded = vf_tokenizer_decode(t, ids, n, skip_special, &text, &n_text, &err) == VF_OK;
    if (!decoded || !same_text(want, text, n_text)) {
        (*wrong_text)++;
        note("decode: want %s, got %s", json_string_value(want), decoded ? text : err.text);
    }
    if (!streamed(t, ids, n, skip_special, &got) || !same_text(want, got.s, got.n))
        (*wrong_stream)++;
    free(text);
    free(got.s);
    free(ids);
}

static void check_line(const struct vf_tokenizer *t, const json_t *line, struct tally *y)
{
    const json_t *text = json_object_get(line, "text");
    const json_t *skipped = json_object_get(line, "decoded_skip_special");
    y->lines++;
    y->wrong_ids += !encodes_to(t, text, false, json_object_get(line, "ids"));
    y->wrong_special += !encodes_to(t, text, true, json_object_get(line, "ids_with_special"));
    check_decoded(t, line, false, json_object_get(line, "decoded"), &y->wrong_text,
                  &y->wrong_stream);
    if (skipped)
        check_decoded(t, line, true, skipped, &y->wrong_skip, &y->wrong_skip);
}

static void check_lines(const struct vf_tokenizer *t, char *cases, struct tally *y)
{
    for (char *at = cases, *end; (end = strchr(at, '\n')); at = end + 1) {
        json_error_t jerr;
        json_t *line = json_loadb(at, (size_t)(end - at), JSON_ALLOW_NUL, &jerr);
        if (line)
            check_line(t, line, y);
        else
            y->wrong_ids++;
        json_decref(line);
    }
}

static void check_tokenizer(const char *name, const char *json, size_t n, char *cases)
{
    struct vf_err err = {0};
    struct vf_tokenizer *t;
    struct tally y = {0};
    if (!ok(vf_tokenizer_create(json, n, name, &t, &err) == VF_OK, "%s: loads", name))
        note("%s", err.text);
    if (t)
        check_lines(t, cases, &y);
    note("%s: %d lines", name, y.lines);
    ok(y.lines > 0 && y.wrong_ids == 0, "%s: ids, %d wrong", name, y.wrong_ids);
    ok(y.lines > 0 && y.wrong_special == 0, "%s: ids with special tokens, %d wrong", name,
       y.wrong_special);
    ok(y.lines > 0 && y.wrong_text == 0, "%s: decoded text, %d wrong", name, y.wrong_text);
    ok(y.lines > 0 && y.wrong_stream == 0, "%s: streamed text, %d wrong", name, y.wrong_stream);
    vf_tokenizer_destroy(t);
}

/* --- variants --- */

/* Sets (or, without a value, removes) what path names. */
static bool apply_edit(json_t *root, const json_t *edit)
{
    const json_t *path = json_array_get(edit, 0);
    size_t depth = json_array_size(path);
    json_t *at = root;
    for (size_t i = 0; i + 1 < depth && at; i++)
        at = json_object_get(at, json_string_value(json_array_get(path, i)));
    const char *key = json_string_value(json_array_get(path, depth - 1));
    if (json_array_size(edit) == 1)
        return json_object_del(at, key) == 0;
    return json_object_set(at, key, json_array_get(edit, 1)) == 0;
}

/* Turns merges "a b" into ["a", "b"]. */
static void pair_merges(json_t *root)
{
    json_t *merges = json_object_get(json_object_get(root, "model"), "merges");
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const char *merge = json_string_value(json_array_get(merges, i));
        const char *space = strchr(merge, ' ');
        json_array_set_new(merges, i,
                           json_pack("[s%,s]", merge, (size_t)(space - merge), space + 1));
    }
}

static struct vf_tokenizer *make_variant(const json_t *variant)
{
    struct vf_err err = {0};
    struct vf_tokenizer *t = NULL;
    json_error_t jerr;
    size_t n;
    char *base =
        tokenizer_file(json_string_value(json_object_get(variant, "base")), "tokenizer.json", &n);
    json_t *root = base ? json_loadb(base, n, 0, &jerr) : NULL;
    const json_t *edits = json_object_get(variant, "edits");
    bool edited = root != NULL;
    for (size_t i = 0; i < json_array_size(edits) && edited; i++)
        edited = apply_edit(root, json_array_get(edits, i));
    if (edited && json_is_true(json_object_get(variant, "pairs")))
        pair_merges(root);
    char *text = json_dumps(root, JSON_COMPACT);
    if (!edited || vf_tokenizer_create(text, strlen(text), "variant", &t, &err) != VF_OK)
        note("%s", edited ? err.text : "an edit fails");
    free(text);
    free(base);
    json_decref(root);
    return t;
}

static void check_variant(const json_t *variant)
{
    const char *name = json_string_value(json_object_get(variant, "name"));
    const json_t *cases = json_object_get(variant, "cases");
    const json_t *decodes = json_object_get(variant, "decodes");
    struct tally y = {0};
    struct vf_tokenizer *t = make_variant(variant);
    for (size_t i = 0; t && i < json_array_size(cases); i++)
        check_line(t, json_array_get(cases, i), &y);
    for (size_t i = 0; t && i < json_array_size(decodes); i++) {
        const json_t *line = json_array_get(decodes, i);
        check_decoded(t, line, false, json_object_get(line, "decoded"), &y.wrong_text,
                      &y.wrong_stream);
    }
    ok(t && y.lines > 0 &&
           y.wrong_ids + y.wrong_special + y.wrong_text + y.wrong_stream + y.wrong_skip == 0,
       "%s: of %d texts and %d id sequences, wrong: %d ids, %d with special tokens, %d decoded, %d "
       "streamed, %d without special tokens",
       name, y.lines, (int)json_array_size(decodes), y.wrong_ids, y.wrong_special, y.wrong_text,
       y.wrong_stream, y.wrong_skip);
    vf_tokenizer_destroy(t);
}

static bool of_last_name(const json_t *variant)
{
    return strcmp(json_string_value(json_object_get(variant, "base")),
                  tokenizer_names[TOKENIZER_COUNT_MAX - 1]) == 0;
}

/* How many variants there are of the tokenizers that are here. */
static int variants_of(const json_t *variants, bool all)
{
    int n = 0;
    for (size_t i = 0; i < json_array_size(variants); i++)
        n += all || !of_last_name(json_array_get(variants, i));
    return n;
}

/* argv[1]: variants.json */
int main(int argc, char **argv)
{
    json_error_t jerr;
    json_t *variants = argc > 1 ? json_load_file(argv[1], JSON_ALLOW_NUL, &jerr) : NULL;
    if (!variants) {
        note("can't read variants.json");
        return 1;
    }
    int count = tokenizer_count();
    bool all = count == TOKENIZER_COUNT_MAX;
    plan(count * 5 + variants_of(variants, all));
    for (int i = 0; i < count; i++) {
        size_t n, n_cases;
        char *json = tokenizer_file(tokenizer_names[i], "tokenizer.json", &n);
        char *cases = tokenizer_file(tokenizer_names[i], "cases.jsonl", &n_cases);
        if (json && cases)
            check_tokenizer(tokenizer_names[i], json, n, cases);
        free(json);
        free(cases);
    }
    for (size_t i = 0; i < json_array_size(variants); i++)
        if (all || !of_last_name(json_array_get(variants, i)))
            check_variant(json_array_get(variants, i));
    json_decref(variants);
    return 0;
}
