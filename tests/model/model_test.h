/* What the model tests share: folders of the test data, configs from JSON text, a seeded generator.
 */
#ifndef VF_TESTS_MODEL_MODEL_TEST_H
#define VF_TESTS_MODEL_MODEL_TEST_H

#include "common/model/config.h"
#include "data.h"
#include "tap.h"

#include <dirent.h>
#include <stdint.h>
#include <string.h>

/* Names in a folder of the test data, sorted; at most max. Returns how many. */
__attribute__((unused)) static int list_names(const char *dir, char names[][256], int max)
{
    struct dirent **entries;
    int found = scandir(dir, &entries, NULL, alphasort), n = 0;
    for (int i = 0; i < found; i++) {
        if (entries[i]->d_name[0] != '.' && n < max)
            snprintf(names[n++], 256, "%s", entries[i]->d_name);
        free(entries[i]);
    }
    if (found >= 0)
        free(entries);
    return n;
}

__attribute__((unused)) static enum vf_code parse_text(const char *text, struct vf_config *c,
                                                       struct vf_err *err)
{
    json_t *obj = NULL;
    enum vf_code code = vf_json_parse(text, strlen(text), "test.json", &obj, err);
    if (code != VF_OK)
        return code;
    code = vf_config_parse(obj, "test.json", c, err);
    json_decref(obj);
    return code;
}

/* For configs that are part of the test itself. */
__attribute__((unused)) static void parse_good(const char *text, struct vf_config *c)
{
    struct vf_err err = {0};
    if (parse_text(text, c, &err) != VF_OK) {
        printf("Bail out! %s: %s\n", err.text, text);
        _exit(1);
    }
}

struct rng {
    uint64_t state;
};

__attribute__((unused)) static uint64_t rng_next(struct rng *r)
{
    r->state += 0x9e3779b97f4a7c15ull;
    uint64_t z = r->state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

__attribute__((unused)) static uint32_t rng_below(struct rng *r, uint32_t n)
{
    return (uint32_t)(rng_next(r) % n);
}

/* [-1, 1) */
__attribute__((unused)) static double rng_unit(struct rng *r)
{
    return (double)(rng_next(r) >> 11) / 4503599627370496.0 - 1.0;
}

/* A random small pipeline_native config of the given style, valid by construction. */
__attribute__((unused)) static void random_config(struct rng *r, enum vf_style style,
                                                  struct vf_config *c)
{
    char text[1024], extra[160] = "";
    uint32_t layers = 1 + rng_below(r, 9), da = 0, dd = 0, de = 0, parts = 1 + rng_below(r, 3);
    bool delays = style == VF_STYLE_DELAYED_SUM || style == VF_STYLE_ASYNC_EXPERTS;
    if (delays) {
        da = rng_below(r, layers + 3);
        dd = rng_below(r, layers + 3);
        de = rng_below(r, layers + 3);
    } else if (style != VF_STYLE_PARALLEL_SQRT2) {
        parts = 1; /* dense only */
    }
    if (style == VF_STYLE_DECOUPLED_STREAMS)
        snprintf(extra, sizeof extra, ",\"merge_interval\":%u", 1 + rng_below(r, layers + 1));
    if (style == VF_STYLE_FIXED_POINT)
        snprintf(extra, sizeof extra, ",\"fixed_point_iterations\":%u", 1 + rng_below(r, 4));
    snprintf(text, sizeof text,
             "{\"model_type\":\"pipeline_native\",\"combine_style\":\"%s\",\"attention_delay\":%u,"
             "\"dense_delay\":%u,\"expert_delay\":%u,\"hidden_size\":32,\"num_hidden_layers\":%u,"
             "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":%u,"
             "\"num_experts\":%u,\"num_experts_per_tok\":%u,\"moe_intermediate_size\":%u,"
             "\"vocab_size\":%u%s}",
             vf_style_name(style), da, dd, de, layers, parts & 1 ? 16 + rng_below(r, 200) : 0,
             parts & 2 ? 4 : 0, parts & 2 ? 2 : 0, parts & 2 ? 16 + rng_below(r, 100) : 0,
             50 + rng_below(r, 3000), extra);
    parse_good(text, c);
}

#endif
