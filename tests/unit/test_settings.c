/* The table of run settings: it covers the message, and each of its sources is read and refused. */
#include "common/settings/settings.h"
#include "tap.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[] = "settings-XXXXXX";

/* "KV_F16" -> "f16" */
static bool word_is(const char *enum_name, const char *word)
{
    const char *p = strchr(enum_name, '_');
    if (!p || strlen(++p) != strlen(word))
        return false;
    for (; *p; p++, word++)
        if (tolower((unsigned char)*p) != *word)
            return false;
    return true;
}

static bool words_match(const ProtobufCEnumDescriptor *d, const char *const *words)
{
    unsigned n = 0;
    for (; words[n]; n++)
        if (n >= d->n_values || d->values[n].value != (int)n ||
            !word_is(d->values[n].name, words[n]))
            return false;
    return n == d->n_values;
}

static void test_table(void)
{
    Vflow__RunSettings s;
    vf_run_settings_init(&s);
    struct vf_opt opts[VF_RUN_SETTINGS_MAX];
    const ProtobufCMessageDescriptor *d = &vflow__run_settings__descriptor;
    size_t n = vf_run_settings_options(&s, opts);
    bool names = n == d->n_fields, types = true;
    for (size_t i = 0; i < n && names; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        char name[64];
        snprintf(name, sizeof name, "%s", opts[i].name);
        for (char *p = name; *p; p++)
            *p = *p == '-' ? '_' : *p;
        names &= strcmp(name, f->name) == 0 && opts[i].value == (char *)&s + f->offset;
        types &= f->type == (opts[i].type == VF_OPT_CHOICE   ? PROTOBUF_C_TYPE_ENUM
                             : opts[i].type == VF_OPT_STRING ? PROTOBUF_C_TYPE_STRING
                             : opts[i].type == VF_OPT_UINT32 ? PROTOBUF_C_TYPE_UINT32
                             : opts[i].type == VF_OPT_SIZE   ? PROTOBUF_C_TYPE_UINT64
                                                             : PROTOBUF_C_TYPE_INT32);
        if (opts[i].type == VF_OPT_CHOICE)
            ok(words_match(f->descriptor, opts[i].choices), "words of %s", opts[i].name);
    }
    ok(names, "a row for every field, in their order");
    ok(types, "of the field's type");
}

static enum vf_code read_file(const char *text, Vflow__RunSettings *s, json_t **owner,
                              struct vf_err *err)
{
    FILE *f = fopen(path, "w");
    vf_run_settings_init(s);
    *err = (struct vf_err){0};
    if (!f || fputs(text, f) < 0 || fclose(f) != 0) {
        printf("Bail out! can't write %s\n", path);
        _exit(1);
    }
    return vf_run_settings_from_file(s, path, owner, err);
}

static void test_file(void)
{
    Vflow__RunSettings s;
    struct vf_err err;
    json_t *owner;
    enum vf_code code =
        read_file("{\"model\": \"m\", \"threads\": 3, \"memory\": \"2G\", \"expert-cache\": 4096, "
                  "\"kv\": \"f32\", \"verbose\": 2}",
                  &s, &owner, &err);
    ok(code == VF_OK && strcmp(s.model, "m") == 0 && s.threads == 3 && s.memory == 2ull << 30 &&
           s.expert_cache == 4096 && s.kv == VFLOW__KV__KV_F32 && s.verbose == 2 && s.batch == 1,
       "a settings file %s", err.text);
    json_decref(owner);
    static const struct {
        const char *text, *words[3]; /* beside the file */
    } bad[] = {
        {"{\"thread\": 1}", {"'thread' found", "threads"}},
        {"{\"threads\": 0}", {"threads: '0' found", "1 to 1024"}},
        {"{\"threads\": 4294967297}", {"threads: '4294967297' found", "1 to 1024"}},
        {"{\"threads\": \"3\"}", {"threads: a string found", "a whole number"}},
        {"{\"threads\": 1.5}", {"threads: a number found", "a whole number"}},
        {"{\"kv\": \"f8\"}", {"kv: 'f8' found", "auto, f16, f32"}},
        {"{\"kv\": 1}", {"kv: a whole number found", "a string"}},
        {"{\"memory\": \"lots\"}", {"memory: 'lots'", "size"}},
        {"{\"memory\": null}", {"memory: null found", "a number or a string"}},
        {"{\"verbose\": 3}", {"verbose: '3' found", "0 to 2"}},
        {"{\"kv\": \"f16\", \"kv\": \"f32\"}", {"kv"}},
        {"[]", {"an array found", "an object"}},
        {"{", {":1"}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        code = read_file(bad[i].text, &s, &owner, &err);
        bool named = code == VF_ERR_CORRUPT && !owner && strstr(err.text, path);
        for (int k = 0; k < 3 && bad[i].words[k] && named; k++)
            named = i + 1 == sizeof bad / sizeof bad[0] || strstr(err.text, bad[i].words[k]);
        ok(named, "%s: %s", bad[i].text, err.text);
    }
    code = vf_run_settings_from_file(&s, "no-such-file", &owner, &err);
    ok(code == VF_ERR_NOT_FOUND && strstr(err.text, "no-such-file"), "%s", err.text);
}

static void test_environment(void)
{
    Vflow__RunSettings s;
    struct vf_err err = {0};
    vf_run_settings_init(&s);
    setenv("VFLOW_EXPERT_CACHE", "64K", 1);
    setenv("VFLOW_IO", "buffered", 1);
    ok(vf_run_settings_from_env(&s, &err) == VF_OK && s.expert_cache == 65536 &&
           s.io == VFLOW__IO__IO_BUFFERED,
       "the environment %s", err.text);
    setenv("VFLOW_IO", "telepathic", 1);
    ok(vf_run_settings_from_env(&s, &err) == VF_ERR_USAGE &&
           strstr(err.text, "VFLOW_IO: 'telepathic' found, allowed: direct, buffered"),
       "%s", err.text);
    unsetenv("VFLOW_IO");
    unsetenv("VFLOW_EXPERT_CACHE");
}

static void test_message(void)
{
    Vflow__RunSettings s;
    struct vf_err err = {0};
    vf_run_settings_init(&s);
    ok(vf_run_settings_check(&s, &err) == VF_OK, "the defaults pass %s", err.text);
    s.speculate = (Vflow__Speculate)3;
    ok(vf_run_settings_check(&s, &err) == VF_ERR_PROTOCOL &&
           strstr(err.text, "speculate: the unknown word number 3 found, allowed: auto, on, off"),
       "%s", err.text);
    s.speculate = VFLOW__SPECULATE__SPECULATE_OFF;
    s.threads = 1025;
    ok(vf_run_settings_check(&s, &err) == VF_ERR_PROTOCOL &&
           strstr(err.text, "threads: 1025 found, allowed: 0 and 1 to 1024"),
       "%s", err.text);
    s.threads = 1;
    s.memory = UINT64_MAX;
    ok(vf_run_settings_check(&s, &err) == VF_ERR_PROTOCOL && strstr(err.text, "memory"), "%s",
       err.text);
}

int main(void)
{
    plan(9 + 2 + 1 + 13 + 1 + 2 + 4);
    int fd = mkstemp(path);
    if (fd >= 0)
        close(fd);
    test_table();
    test_file();
    test_environment();
    test_message();
    unlink(path);
    return 0;
}
