#include "common/tokenizer/post_processor.h"

#include "common/tokenizer/pre_tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum kind { SEQUENCE, BYTE_LEVEL, TEMPLATE };
static const char *const kinds[] = {"Sequence", "ByteLevel", "TemplateProcessing", NULL};

/* Pieces of a template and ids of one special token. */
#define TEMPLATE_LENGTH_MAX 64

struct loader {
    struct vf_post_processor *pp;
    bool has_template;
    const struct vf_vocab *vocab;
    struct vf_err *err;
};

/* The ids that special_tokens gives to a name. */
static enum vf_code read_special(const struct loader *l, const json_t *specials, const char *name,
                                 const struct vf_place *p, struct vf_ids *ids)
{
    static const char *const keys[] = {"id", "ids", "tokens", NULL};
    struct vf_place at = vf_place_key(p, vf_json_quote(name, strlen(name)).text);
    const json_t *special = json_object_get(specials, name);
    if (!special)
        return vf_err_set(l->err, VF_ERR_CORRUPT,
                          "%s: found no entry for %s, which the template names", p->text,
                          vf_json_quote(name, strlen(name)).text);
    struct vf_place ids_at = vf_place_key(&at, "ids");
    const json_t *list = json_object_get(special, "ids");
    enum vf_code code = vf_json_expect_object(special, &at, l->err);
    if (code == VF_OK)
        code = vf_json_expect_keys(special, keys, &at, l->err);
    if (code == VF_OK)
        code = vf_json_expect_array(list, TEMPLATE_LENGTH_MAX, &ids_at, l->err);
    for (size_t i = 0; code == VF_OK && i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        const char *text;
        size_t n;
        bool known = json_is_integer(v) && json_integer_value(v) >= 0 &&
                     json_integer_value(v) < l->vocab->size &&
                     vf_vocab_text(l->vocab, (uint32_t)json_integer_value(v), &text, &n);
        if (!known)
            return vf_err_set(l->err, VF_ERR_CORRUPT,
                              "%s[%zu]: found %s, must be the id of a token", ids_at.text, i,
                              vf_json_describe(v).text);
        uint32_t id = (uint32_t)json_integer_value(v);
        code = vf_ids_append(ids, &id, 1, l->err);
    }
    return code;
}

/* {"Sequence": {"id": "A", ...}} is the text's place, {"SpecialToken": {"id": NAME, ...}} adds. */
static enum vf_code read_piece(const struct loader *l, const json_t *piece, const json_t *specials,
                               const struct vf_place *p, const struct vf_place *specials_at,
                               bool *has_text)
{
    static const char *const piece_keys[] = {"Sequence", "SpecialToken", NULL};
    static const char *const keys[] = {"id", "type_id", NULL};
    enum vf_code code = vf_json_expect_object(piece, p, l->err);
    if (code == VF_OK)
        code = vf_json_expect_keys(piece, piece_keys, p, l->err);
    if (code != VF_OK)
        return code;
    if (json_object_size(piece) != 1)
        return vf_err_set(l->err, VF_ERR_CORRUPT,
                          "%s: found %zu fields, must be one of Sequence and SpecialToken", p->text,
                          json_object_size(piece));
    const json_t *text = json_object_get(piece, "Sequence");
    const json_t *body = text ? text : json_object_get(piece, "SpecialToken");
    struct vf_place at = vf_place_key(p, text ? "Sequence" : "SpecialToken");
    const char *id;
    size_t n;
    code = vf_json_expect_object(body, &at, l->err);
    if (code == VF_OK)
        code = vf_json_expect_keys(body, keys, &at, l->err);
    if (code == VF_OK)
        code = vf_json_read_string(body, "id", &at, &id, &n, l->err);
    if (code != VF_OK)
        return code;
    if (!text)
        return read_special(l, specials, id, specials_at,
                            *has_text ? &l->pp->suffix : &l->pp->prefix);
    if (strcmp(id, "A") != 0 || *has_text)
        return vf_err_set(l->err, VF_ERR_UNSUPPORTED,
                          "%s: found the sequence %s%s, allowed is A, once", at.text,
                          vf_json_quote(id, n).text, *has_text ? " behind another one" : "");
    *has_text = true;
    return VF_OK;
}

static enum vf_code read_template(const struct loader *l, const json_t *v, const struct vf_place *p)
{
    static const char *const keys[] = {"type", "single", "pair", "special_tokens", NULL};
    struct vf_place single_at = vf_place_key(p, "single");
    struct vf_place specials_at = vf_place_key(p, "special_tokens");
    const json_t *single = json_object_get(v, "single");
    const json_t *specials = json_object_get(v, "special_tokens");
    bool has_text = false;
    enum vf_code code = vf_json_expect_keys(v, keys, p, l->err);
    if (code == VF_OK)
        code = vf_json_expect_array(single, TEMPLATE_LENGTH_MAX, &single_at, l->err);
    if (code == VF_OK)
        code = vf_json_expect_object(specials, &specials_at, l->err);
    for (size_t i = 0; code == VF_OK && i < json_array_size(single); i++) {
        struct vf_place at = vf_place_index(&single_at, i);
        code = read_piece(l, json_array_get(single, i), specials, &at, &specials_at, &has_text);
    }
    if (code == VF_OK && !has_text)
        code = vf_err_set(l->err, VF_ERR_UNSUPPORTED, "%s: found no sequence A, must be there once",
                          single_at.text);
    return code;
}

static enum vf_code load(struct loader *l, const json_t *v, const struct vf_place *p, int depth)
{
    static const char *const keys[] = {"type", "processors", NULL};
    int kind;
    bool ignored;
    enum vf_code code = vf_json_read_kind(v, kinds, p, &kind, l->err);
    if (code != VF_OK)
        return code;
    if (kind == TEMPLATE && l->has_template)
        return vf_err_set(l->err, VF_ERR_UNSUPPORTED,
                          "%s: found a second TemplateProcessing, at most one is allowed", p->text);
    if (kind == TEMPLATE) {
        l->has_template = true;
        return read_template(l, v, p);
    }
    if (kind == BYTE_LEVEL) /* it trims offsets only */
        return vf_byte_level_read(v, p, &ignored, &ignored, l->err);
    if (depth == VF_SEQUENCE_DEPTH_MAX)
        return vf_err_set(l->err, VF_ERR_UNSUPPORTED, "%s: found sequences nested deeper than %d",
                          p->text, VF_SEQUENCE_DEPTH_MAX);
    struct vf_place list_at = vf_place_key(p, "processors");
    const json_t *list = json_object_get(v, "processors");
    code = vf_json_expect_keys(v, keys, p, l->err);
    if (code == VF_OK)
        code = vf_json_expect_array(list, VF_SEQUENCE_LENGTH_MAX, &list_at, l->err);
    for (size_t i = 0; code == VF_OK && i < json_array_size(list); i++) {
        struct vf_place at = vf_place_index(&list_at, i);
        code = load(l, json_array_get(list, i), &at, depth + 1);
    }
    return code;
}

enum vf_code vf_post_processor_init(struct vf_post_processor *pp, const json_t *v,
                                    const struct vf_place *p, const struct vf_vocab *vocab,
                                    struct vf_err *err)
{
    *pp = (struct vf_post_processor){0};
    struct loader l = {pp, false, vocab, err};
    return !v || json_is_null(v) ? VF_OK : load(&l, v, p, 0);
}

void vf_post_processor_deinit(struct vf_post_processor *pp)
{
    free(pp->prefix.v);
    free(pp->suffix.v);
    *pp = (struct vf_post_processor){0};
}
