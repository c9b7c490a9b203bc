/* The default template is that of chat_template.jinja, else of tokenizer_config.json (its string,
 * or its list's entry "default"), else of chat_template.json. The list's other entries are kept by
 * name. What is null or missing is left out; a chat without keys isn't kept. */
#include "convert/chat_source.h"

#include "common/base/util.h"

#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX (16u << 20) /* of tokenizer_config.json: it lists all added tokens */

static enum vf_code no_memory(const char *where, struct vf_err *err)
{
    return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", where);
}

/* Takes value. */
static enum vf_code put(json_t *object, const char *key, json_t *value, const char *where,
                        struct vf_err *err)
{
    return json_object_set_new(object, key, value) == 0 ? VF_OK : no_memory(where, err);
}

/* *object is NULL where the directory has no file of that name. *path is the caller's to free. */
static enum vf_code load_beside(const char *dir, const char *name, char **path, json_t **object,
                                struct vf_err *err)
{
    *object = NULL;
    *path = vf_path_join(dir, name);
    if (!*path)
        return no_memory(dir, err);
    if (!vf_name_exists(*path))
        return VF_OK;
    enum vf_code code = vf_json_load_python(*path, FILE_BYTES_MAX, object, err);
    if (code || json_is_object(*object))
        return code;
    json_decref(*object);
    *object = NULL;
    return vf_err_set(err, VF_ERR_CORRUPT, "%s: must be a JSON object", *path);
}

enum vf_code vf_directory_read_generation(const char *dir, struct vf_config *config,
                                          struct vf_err *err)
{
    char *path;
    json_t *object;
    enum vf_code code = load_beside(dir, "generation_config.json", &path, &object, err);
    if (!code && object)
        code = vf_config_take_tokens(object, path, config, err);
    json_decref(object);
    free(path);
    return code;
}

/* ---- templates ---- */

static enum vf_code put_string(json_t *out, const char *key, const json_t *from,
                               struct vf_json_field field, struct vf_err *err)
{
    const char *text;
    bool found;
    enum vf_code code = vf_json_get_string(from, field, &text, &found, err);
    return !code && found ? put(out, key, json_string(text), field.where, err) : code;
}

/* One entry {"name": ..., "template": ...} of the list. */
static enum vf_code take_entry(json_t *chat, json_t *templates, const json_t *entry,
                               const char *where, struct vf_err *err)
{
    const char *name, *text;
    if (!json_is_object(entry))
        return vf_err_set(
            err, VF_ERR_CORRUPT,
            "%s: chat_template has an entry that isn't an object of name and template", where);
    enum vf_code code =
        vf_json_get_string(entry, (struct vf_json_field){where, "name", true}, &name, NULL, err);
    if (!code)
        code = vf_json_get_string(entry, (struct vf_json_field){where, "template", true}, &text,
                                  NULL, err);
    if (code)
        return vf_err_append(err, " (in chat_template)");
    bool first = strcmp(name, "default") == 0;
    return put(first ? chat : templates, first ? "template" : name, json_string(text), where, err);
}

static enum vf_code take_template(json_t *chat, const json_t *object, const char *where,
                                  struct vf_err *err)
{
    const json_t *value = json_object_get(object, "chat_template"), *entry;
    if (!json_is_array(value))
        return put_string(chat, "template", object,
                          (struct vf_json_field){where, "chat_template", false}, err);
    json_t *templates = json_object();
    enum vf_code code = templates ? VF_OK : no_memory(where, err);
    for (size_t i = 0; i < json_array_size(value) && !code; i++) {
        entry = json_array_get(value, i);
        code = take_entry(chat, templates, entry, where, err);
    }
    if (!code && json_object_size(templates) > 0)
        code = put(chat, "templates", json_incref(templates), where, err);
    json_decref(templates);
    return code;
}

/* A token is a string, or an object that holds it with how it is found in a text. */
static enum vf_code take_token(json_t *chat, const json_t *object, const char *key,
                               const char *where, struct vf_err *err)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_object(value))
        return put_string(chat, key, object, (struct vf_json_field){where, key, false}, err);
    enum vf_code code =
        put_string(chat, key, value, (struct vf_json_field){where, "content", true}, err);
    return code ? vf_err_append(err, " (in %s)", key) : code;
}

static enum vf_code take_flag(json_t *chat, const json_t *object, const char *key,
                              const char *where, struct vf_err *err)
{
    bool value, found;
    enum vf_code code =
        vf_json_get_bool(object, (struct vf_json_field){where, key, false}, &value, &found, err);
    return !code && found ? put(chat, key, json_boolean(value), where, err) : code;
}

/* ---- the files of a checkpoint ---- */

static enum vf_code take_jinja(json_t *chat, const char *dir, struct vf_err *err)
{
    char *path = vf_path_join(dir, "chat_template.jinja"), *text = NULL;
    size_t bytes = 0;
    if (!path)
        return no_memory(dir, err);
    enum vf_code code = VF_OK;
    if (vf_name_exists(path)) {
        code = vf_read_file(path, VF_CHAT_TEMPLATE_BYTES_MAX, &text, &bytes, err);
        if (!code && (!vf_utf8_valid(text, bytes) || memchr(text, 0, bytes)))
            code =
                vf_err_set(err, VF_ERR_CORRUPT, "%s: must be UTF-8 without NUL characters", path);
        if (!code)
            code = put(chat, "template", json_stringn(text, bytes), path, err);
    }
    free(text);
    free(path);
    return code;
}

static enum vf_code take_tokenizer_config(json_t *chat, const char *dir, struct vf_err *err)
{
    char *path;
    json_t *object;
    enum vf_code code = load_beside(dir, "tokenizer_config.json", &path, &object, err);
    if (!code && object &&
        !((code = take_template(chat, object, path, err)) ||
          (code = take_token(chat, object, "bos_token", path, err)) ||
          (code = take_token(chat, object, "eos_token", path, err)) ||
          (code = take_flag(chat, object, "add_bos_token", path, err))))
        code = take_flag(chat, object, "add_eos_token", path, err);
    json_decref(object);
    free(path);
    return code;
}

static enum vf_code take_chat_template(json_t *chat, const char *dir, struct vf_err *err)
{
    char *path;
    json_t *object;
    enum vf_code code = load_beside(dir, "chat_template.json", &path, &object, err);
    if (!code && object)
        code = take_template(chat, object, path, err);
    json_decref(object);
    free(path);
    return code;
}

/* What every reader of the model file will check, checked against the source's name. */
static enum vf_code finish(json_t *chat, const char *where, enum vf_code code, json_t **out,
                           struct vf_err *err)
{
    if (!code)
        code = vf_chat_check(chat, where, err);
    *out = NULL;
    if (code || json_object_size(chat) == 0)
        json_decref(chat);
    else
        *out = chat;
    return code;
}

/* The strongest last: each replaces what a weaker one gave. */
enum vf_code vf_directory_read_chat(const char *dir, json_t **out, struct vf_err *err)
{
    json_t *chat = json_object();
    enum vf_code code = chat ? VF_OK : no_memory(dir, err);
    if (!code)
        code = take_chat_template(chat, dir, err);
    if (!code)
        code = take_tokenizer_config(chat, dir, err);
    if (!code)
        code = take_jinja(chat, dir, err);
    return finish(chat, dir, code, out, err);
}

/* ---- GGUF ---- */

#define GGUF_TEMPLATE "tokenizer.chat_template"

static enum vf_code take_gguf_templates(json_t *chat, const struct vf_gguf *g, struct vf_err *err)
{
    json_t *templates = json_object();
    enum vf_code code = templates ? VF_OK : no_memory(vf_gguf_path(g), err);
    for (size_t i = 0; i < vf_gguf_key_count(g) && !code; i++) {
        const char *key = vf_gguf_key(g, i), *name = key + strlen(GGUF_TEMPLATE), *text = NULL;
        if (strncmp(key, GGUF_TEMPLATE, strlen(GGUF_TEMPLATE)) != 0 || (*name && *name != '.'))
            continue;
        code = vf_gguf_get_string(g, (struct vf_gguf_field){key, true}, &text, err);
        if (!code)
            code = put(*name ? templates : chat, *name ? name + 1 : "template", json_string(text),
                       vf_gguf_path(g), err);
    }
    if (!code && json_object_size(templates) > 0)
        code = put(chat, "templates", json_incref(templates), vf_gguf_path(g), err);
    json_decref(templates);
    return code;
}

static enum vf_code take_gguf_tokens(json_t *chat, const struct vf_gguf *g,
                                     const struct vf_config *config, struct vf_err *err)
{
    const struct {
        const char *key;
        int64_t id;
    } ends[] = {{"bos_token", config->bos_token},
                {"eos_token", config->eos_count ? (int64_t)config->eos_tokens[0] : -1}};
    struct vf_gguf_string *tokens = NULL;
    size_t count = 0;
    enum vf_code code = vf_gguf_get_strings(
        g, (struct vf_gguf_field){"tokenizer.ggml.tokens", false}, &tokens, &count, err);
    for (size_t i = 0; i < VF_ARRAY_LEN(ends) && !code; i++)
        if (ends[i].id >= 0 && (uint64_t)ends[i].id < count)
            code = put(chat, ends[i].key, json_stringn(tokens[ends[i].id].s, tokens[ends[i].id].n),
                       vf_gguf_path(g), err);
    free(tokens);
    return code;
}

static enum vf_code take_gguf_flag(json_t *chat, const struct vf_gguf *g, const char *key,
                                   struct vf_err *err)
{
    bool value = false;
    if (!vf_gguf_has(g, key))
        return VF_OK;
    enum vf_code code = vf_gguf_get_bool(g, (struct vf_gguf_field){key, true}, &value, err);
    return code ? code
                : put(chat, key + strlen("tokenizer.ggml."), json_boolean(value), vf_gguf_path(g),
                      err);
}

/* Beginning and end matter to a template alone. */
enum vf_code vf_gguf_read_chat(const struct vf_gguf *g, const struct vf_config *config,
                               json_t **out, struct vf_err *err)
{
    json_t *chat = json_object();
    enum vf_code code = chat ? VF_OK : no_memory(vf_gguf_path(g), err);
    if (!code)
        code = take_gguf_templates(chat, g, err);
    if (!code && json_object_size(chat) > 0) {
        code = take_gguf_tokens(chat, g, config, err);
        if (!code)
            code = take_gguf_flag(chat, g, "tokenizer.ggml.add_bos_token", err);
        if (!code)
            code = take_gguf_flag(chat, g, "tokenizer.ggml.add_eos_token", err);
    }
    return finish(chat, vf_gguf_path(g), code, out, err);
}
