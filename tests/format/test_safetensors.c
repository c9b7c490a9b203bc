/* The safetensors reader on the malformed set (malformed/safetensors): what expected.json
 * accepts opens, what it refuses is one sentence with the file's name. Then details of good files.
 */
#include "common/base/json.h"
#include "common/format/safetensors.h"
#include "data.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum vf_code open_named(const char *dir, const char *name, struct vf_safetensors **st,
                               struct vf_err *err)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s.safetensors", dir, name);
    return vf_safetensors_open(path, st, err);
}

static void check_file(const char *dir, const char *name, int accept)
{
    struct vf_safetensors *st = NULL;
    struct vf_err err = {0};
    enum vf_code code = open_named(dir, name, &st, &err);
    if (accept) {
        ok(code == VF_OK && st, "%s is accepted %s", name, err.text);
    } else {
        int sentence = strstr(err.text, name) && !strchr(err.text, '\n') && err.text[0];
        ok(code == VF_ERR_CORRUPT && vf_exit_status(code) == 3 && sentence, "%s is refused: %s",
           name, err.text);
    }
    vf_safetensors_close(st);
}

static void check_escaped_name(const char *dir)
{
    struct vf_safetensors *st = NULL;
    struct vf_err err = {0};
    char printable[VF_NAME_PRINTABLE_BYTES];
    open_named(dir, "ok_escaped_name", &st, &err);
    const char *name = st ? vf_safetensors_entry(st, 0)->name : "";
    ok(strcmp(name, "a\xc3\xa9\n\xf0\x9f\x98\x80") == 0, "escapes in a name are decoded");
    ok(strcmp(vf_name_printable(name, printable, sizeof printable), "a\xc3\xa9?\xf0\x9f\x98\x80") ==
           0,
       "a name is printed on one line");
    vf_safetensors_close(st);
}

static void check_basic(const char *dir)
{
    struct vf_safetensors *st = NULL;
    struct vf_err err = {0};
    open_named(dir, "ok_basic", &st, &err);
    const struct vf_safetensors_entry *e = st ? vf_safetensors_entry(st, 0) : NULL;
    ok(e && e->dtype == VF_DTYPE_I32 && e->rank == 2 && e->shape[0] == 2 && e->shape[1] == 2 &&
           e->offset == 68 && e->bytes == 16,
       "dtype, shape and place of a tensor");
    uint32_t word = 1;
    ok(e && vf_safetensors_read(st, e, 12, &word, sizeof word, &err) == VF_OK && word == 0,
       "its data are read");
    vf_safetensors_close(st);
}

static void check_long_name(void)
{
    char name[400], printable[VF_NAME_PRINTABLE_BYTES];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = 0;
    memcpy(name + VF_NAME_PRINTABLE_BYTES - 5, "\xc3\xa9", 2);
    vf_name_printable(name, printable, sizeof printable);
    ok(strlen(printable) < sizeof printable &&
           strcmp(printable + strlen(printable) - 4, "x...") == 0,
       "a long name is cut before a character, not inside it");
}

int main(void)
{
    char dir[4096], path[4200];
    snprintf(dir, sizeof dir, "%s/malformed/safetensors", data_dir());
    snprintf(path, sizeof path, "%s/expected.json", dir);
    json_t *expected = NULL;
    struct vf_err err = {0};
    if (vf_json_load(path, 1 << 20, &expected, &err)) {
        printf("not ok - %s\n", err.text);
        return 1;
    }
    plan((int)json_object_size(expected) + 6);
    const char *name;
    json_t *entry;
    json_object_foreach(expected, name, entry)
    {
        check_file(dir, name, json_is_true(json_object_get(entry, "accept")));
    }
    check_escaped_name(dir);
    check_basic(dir);
    check_long_name();
    struct vf_safetensors *st = NULL;
    ok(open_named(dir, "no_such_file", &st, &err) == VF_ERR_NOT_FOUND, "a missing file: %s",
       err.text);
    json_decref(expected);
    return 0;
}
