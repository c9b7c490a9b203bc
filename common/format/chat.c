#include "common/format/chat.h"

#include "common/base/util.h"

#include <string.h>

static enum vf_code check_template(const json_t *templates, const char *name, const char *where,
                                   struct vf_err *err)
{
    const char *text;
    bool found;
    enum vf_code code = vf_json_get_string(templates, (struct vf_json_field){where, name, false},
                                           &text, &found, err);
    if (!code && found && strlen(text) > VF_CHAT_TEMPLATE_BYTES_MAX)
        code = vf_err_set(err, VF_ERR_CORRUPT, "%s: %.80s has %zu bytes, at most %u are allowed",
                          where, name, strlen(text), VF_CHAT_TEMPLATE_BYTES_MAX);
    return code;
}

static enum vf_code check_named(const json_t *templates, const char *where, struct vf_err *err)
{
    const char *name;
    json_t *ignored;
    enum vf_code code = VF_OK;
    if (!json_is_object(templates) || json_object_size(templates) > VF_CHAT_TEMPLATES_MAX)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: templates must be an object of at most %u strings", where,
                          VF_CHAT_TEMPLATES_MAX);
    json_object_foreach((json_t *)templates, name, ignored)
    {
        if (!code)
            code = check_template(templates, name, where, err);
    }
    return code;
}

enum vf_code vf_chat_check(const json_t *chat, const char *where, struct vf_err *err)
{
    static const char *const strings[] = {"template", "bos_token", "eos_token"};
    static const char *const flags[] = {"add_bos_token", "add_eos_token"};
    if (!json_is_object(chat))
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: chat must be an object", where);
    size_t known = 0;
    enum vf_code code = VF_OK;
    for (size_t i = 0; i < VF_ARRAY_LEN(strings) && !code; i++) {
        known += json_object_get(chat, strings[i]) != NULL;
        code = check_template(chat, strings[i], where, err);
    }
    for (size_t i = 0; i < VF_ARRAY_LEN(flags) && !code; i++) {
        bool ignored;
        known += json_object_get(chat, flags[i]) != NULL;
        code = vf_json_get_bool(chat, (struct vf_json_field){where, flags[i], false}, &ignored,
                                NULL, err);
    }
    const json_t *templates = json_object_get(chat, "templates");
    if (!code && templates)
        code = check_named(templates, where, err);
    if (!code && known + (templates != NULL) != json_object_size(chat))
        code = vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: chat has an unknown key; known are template, templates, bos_token, "
                          "eos_token, add_bos_token, add_eos_token",
                          where);
    return code;
}
