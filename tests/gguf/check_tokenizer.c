/* check_tokenizer TOKENIZER.json CASES.jsonl NAME: the tokenizer gives every recorded text its ids,
 * with and without special tokens, and every list of ids its text. TAP on stdout. */
#include "common/base/util.h"
#include "common/tokenizer/tokenizer.h"
#include "tap.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static bool same_ids(const json_t *want, const uint32_t *ids, size_t n)
{
    bool same = json_is_array(want) && json_array_size(want) == n;
    for (size_t i = 0; same && i < n; i++)
        same = json_integer_value(json_array_get(want, i)) == (json_int_t)ids[i];
    return same;
}

static bool encodes(const struct vf_tokenizer *t, const json_t *line, bool special)
{
    const json_t *text = json_object_get(line, "text");
    struct vf_err err = {0};
    uint32_t *ids = NULL;
    size_t n = 0;
    if (vf_tokenizer_encode(t, json_string_value(text), json_string_length(text), special, &ids, &n,
                            &err) != VF_OK)
        return false;
    bool same = same_ids(json_object_get(line, special ? "ids_with_special" : "ids"), ids, n);
    if (!same)
        note("text %.200s", json_string_value(text));
    free(ids);
    return same;
}

static bool decodes(const struct vf_tokenizer *t, const json_t *line)
{
    const json_t *list = json_object_get(line, "ids"), *want = json_object_get(line, "decoded");
    struct vf_err err = {0};
    size_t n = json_array_size(list), n_text = 0;
    uint32_t *ids = malloc((n + 1) * sizeof *ids);
    char *text = NULL;
    for (size_t i = 0; i < n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    bool same = vf_tokenizer_decode(t, ids, n, false, &text, &n_text, &err) == VF_OK &&
                n_text == json_string_length(want) &&
                memcmp(text, json_string_value(want), n_text) == 0;
    free(ids);
    free(text);
    return same;
}

int main(int argc, char **argv)
{
    struct vf_err err = {0};
    struct vf_tokenizer *t = NULL;
    char *json, *cases;
    size_t n, n_cases;
    int lines = 0, wrong_ids = 0, wrong_special = 0, wrong_text = 0;
    plan(4);
    if (argc != 4 || vf_read_file(argv[1], 1u << 28, &json, &n, &err) != VF_OK ||
        vf_read_file(argv[2], 1u << 28, &cases, &n_cases, &err) != VF_OK)
        return 2;
    if (!ok(vf_tokenizer_create(json, n, argv[1], &t, &err) == VF_OK, "%s: loads", argv[3]))
        note("%s", err.text);
    for (char *at = cases, *end; t && (end = strchr(at, '\n')); at = end + 1, lines++) {
        json_t *line = json_loadb(at, (size_t)(end - at), JSON_ALLOW_NUL, NULL);
        wrong_ids += !line || !encodes(t, line, false);
        wrong_special += !line || !encodes(t, line, true);
        wrong_text += !line || !decodes(t, line);
        json_decref(line);
    }
    ok(lines > 0 && wrong_ids == 0, "%s: ids of %d texts, %d wrong", argv[3], lines, wrong_ids);
    ok(lines > 0 && wrong_special == 0, "%s: with special tokens, %d wrong", argv[3],
       wrong_special);
    ok(lines > 0 && wrong_text == 0, "%s: decoded texts, %d wrong", argv[3], wrong_text);
    vf_tokenizer_destroy(t);
    free(json);
    free(cases);
    return 0;
}
