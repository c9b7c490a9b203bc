/* Reading and writing of key files. One parser turns a file into a list of entries; the three
 * readers differ in what they allow in that list. Secrets are wiped from every buffer they passed
 * through.
 */
#include "common/run/curve_keys.h"

#include "common/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#define FILE_MAX ((size_t)VF_CURVE_LIST_MAX * 128) /* 40 characters of key, the rest is comment */

enum entry_kind { ENTRY_NONE, ENTRY_PUBLIC, ENTRY_SECRET };

/* What one file holds: its public keys, and its secret key where it has one. */
struct key_file {
    struct vf_curve_list publics;
    char secret[VF_CURVE_KEY_CHARS + 1];
    int secret_count;
};

static void key_file_deinit(struct key_file *f)
{
    vf_curve_list_deinit(&f->publics);
    explicit_bzero(f, sizeof *f);
}

enum vf_code vf_curve_keys_generate(struct vf_curve_keys *out, struct vf_err *err)
{
    if (zmq_curve_keypair(out->public_key, out->secret_key) == 0)
        return VF_OK;
    return vf_err_set(err, VF_ERR_UNSUPPORTED, "this libzmq can't make CURVE keys: %s",
                      zmq_strerror(zmq_errno()));
}

/* ---- writing --------------------------------------------------------------------------------- */

static enum vf_code write_new(const char *path, mode_t mode, const char *text, struct vf_err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0 && errno == EEXIST)
        return vf_err_set(err, VF_ERR_USAGE,
                          "%s exists and isn't overwritten; choose another --out or remove it",
                          path);
    if (fd < 0)
        return vf_err_errno(err, VF_ERR_IO, errno, "can't create %s", path);
    enum vf_code code = vf_pwrite_full(fd, text, strlen(text), 0, path, err);
    if (!code && fchmod(fd, mode) != 0)
        code = vf_err_errno(err, VF_ERR_IO, errno, "can't set the mode of %s", path);
    if (!code && fsync(fd) != 0)
        code = vf_err_errno(err, VF_ERR_IO, errno, "can't write %s", path);
    close(fd);
    if (code)
        unlink(path);
    return code;
}

enum vf_code vf_curve_keys_write(const struct vf_curve_keys *keys, const char *name,
                                 struct vf_err *err)
{
    char key_path[PATH_MAX], pub_path[PATH_MAX], text[256];
    if (!*name || strlen(name) + 5 > sizeof key_path)
        return vf_err_set(err, VF_ERR_USAGE, "'%.40s' can't be the name of key files", name);
    snprintf(key_path, sizeof key_path, "%s.key", name);
    snprintf(pub_path, sizeof pub_path, "%s.pub", name);
    snprintf(text, sizeof text, "# vflow key pair; nobody else may read this file\npublic %s\n",
             keys->public_key);
    size_t n = strlen(text);
    snprintf(text + n, sizeof text - n, "secret %s\n", keys->secret_key);
    enum vf_code code = write_new(key_path, 0600, text, err);
    explicit_bzero(text, sizeof text);
    if (code)
        return code;
    snprintf(text, sizeof text, "# vflow public key\npublic %s\n", keys->public_key);
    code = write_new(pub_path, 0644, text, err);
    if (code)
        unlink(key_path);
    return code;
}

/* ---- reading --------------------------------------------------------------------------------- */

static enum vf_code append_public(struct vf_curve_list *list, const char *key, struct vf_err *err)
{
    if (list->count == VF_CURVE_LIST_MAX)
        return vf_err_set(err, VF_ERR_CORRUPT, "more than %d keys", VF_CURVE_LIST_MAX);
    if ((list->count & (list->count - 1)) == 0) { /* full at every power of two */
        size_t capacity = list->count ? list->count * 2 : 1;
        void *grown = realloc(list->keys, capacity * sizeof *list->keys);
        if (!grown)
            return vf_err_set(err, VF_ERR_NO_MEMORY, "no memory for %zu keys", capacity);
        list->keys = grown;
    }
    if (!zmq_z85_decode(list->keys[list->count], key))
        return vf_err_set(err, VF_ERR_CORRUPT, "the key '%s' isn't Z85", key);
    list->count++;
    return VF_OK;
}

static enum vf_code take_secret(struct key_file *f, const char *key, struct vf_err *err)
{
    uint8_t raw[VF_CURVE_KEY_BYTES];
    if (!zmq_z85_decode(raw, key))
        return vf_err_set(err, VF_ERR_CORRUPT, "the secret key isn't Z85");
    explicit_bzero(raw, sizeof raw);
    memcpy(f->secret, key, VF_CURVE_KEY_CHARS + 1);
    f->secret_count++;
    return VF_OK;
}

/* One line without its newline. */
static enum vf_code parse_line(struct key_file *f, char *line, struct vf_err *err)
{
    char *save = NULL;
    char *word = strtok_r(line, " \t\r", &save);
    if (!word || word[0] == '#')
        return VF_OK;
    enum entry_kind kind = strcmp(word, "public") == 0   ? ENTRY_PUBLIC
                           : strcmp(word, "secret") == 0 ? ENTRY_SECRET
                                                         : ENTRY_NONE;
    if (kind == ENTRY_NONE)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "it starts with '%.20s', allowed are public, secret and #", word);
    const char *key = strtok_r(NULL, " \t\r", &save);
    if (!key || strlen(key) != VF_CURVE_KEY_CHARS)
        return vf_err_set(err, VF_ERR_CORRUPT, "the key has %zu characters, a Z85 key has %d",
                          key ? strlen(key) : 0, VF_CURVE_KEY_CHARS);
    return kind == ENTRY_PUBLIC ? append_public(&f->publics, key, err) : take_secret(f, key, err);
}

static enum vf_code parse_lines(struct key_file *f, char *text, size_t size, const char *path,
                                struct vf_err *err)
{
    if (strlen(text) != size)
        return vf_err_set(err, VF_ERR_CORRUPT, "%s: byte %zu is zero, a key file is text", path,
                          strlen(text));
    int line_no = 1;
    for (char *line = text; line; line_no++) {
        char *end = strchr(line, '\n');
        if (end)
            *end = 0;
        enum vf_code code = parse_line(f, line, err);
        if (code) {
            vf_err_prepend(err, "%s: line %d: ", path, line_no);
            return code;
        }
        line = end ? end + 1 : NULL;
    }
    return VF_OK;
}

/* On failure f holds nothing. */
static enum vf_code read_key_file(const char *path, struct key_file *f, struct vf_err *err)
{
    memset(f, 0, sizeof *f);
    char *text = NULL;
    size_t size = 0;
    enum vf_code code = vf_read_file(path, FILE_MAX, &text, &size, err);
    if (code)
        return code;
    code = parse_lines(f, text, size, path, err);
    explicit_bzero(text, size);
    free(text);
    if (code)
        key_file_deinit(f);
    return code;
}

static enum vf_code check_private(const char *path, struct vf_err *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return vf_err_errno(err, errno == ENOENT ? VF_ERR_NOT_FOUND : VF_ERR_IO, errno,
                            "can't read %s", path);
    if (st.st_mode & 077)
        return vf_err_set(err, VF_ERR_DENIED,
                          "%s has mode %04o, so others can read the secret key; chmod 600 it", path,
                          (unsigned)(st.st_mode & 07777));
    return VF_OK;
}

/* The public half is computed from the secret one, so a pair that was edited is noticed. */
static enum vf_code check_pair(const struct key_file *f, struct vf_curve_keys *out,
                               const char *path, struct vf_err *err)
{
    if (f->secret_count != 1 || f->publics.count != 1)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: %d secret and %zu public keys, a key file has one of each", path,
                          f->secret_count, f->publics.count);
    memcpy(out->secret_key, f->secret, sizeof out->secret_key);
    zmq_z85_encode(out->public_key, f->publics.keys[0], VF_CURVE_KEY_BYTES);
    char derived[VF_CURVE_KEY_CHARS + 1];
    if (zmq_curve_public(derived, f->secret) != 0 || strcmp(derived, out->public_key) != 0)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%s: the public key doesn't belong to the secret one", path);
    return VF_OK;
}

enum vf_code vf_curve_keys_read(const char *path, struct vf_curve_keys *out, struct vf_err *err)
{
    struct key_file f;
    enum vf_code code = check_private(path, err);
    if (!code)
        code = read_key_file(path, &f, err);
    if (code)
        return code;
    code = check_pair(&f, out, path, err);
    key_file_deinit(&f);
    return code;
}

static enum vf_code read_publics(const char *path, size_t count_max, struct vf_curve_list *out,
                                 struct vf_err *err)
{
    struct key_file f;
    enum vf_code code = read_key_file(path, &f, err);
    if (code)
        return code;
    if (f.secret_count)
        code =
            vf_err_set(err, VF_ERR_CORRUPT,
                       "%s: holds a secret key; name the .pub file instead of the .key file", path);
    else if (f.publics.count == 0 || f.publics.count > count_max)
        code = vf_err_set(err, VF_ERR_CORRUPT, "%s: holds %zu public keys, from 1 to %zu allowed",
                          path, f.publics.count, count_max);
    if (code) {
        key_file_deinit(&f);
        return code;
    }
    *out = f.publics;
    return VF_OK;
}

enum vf_code vf_curve_public_read(const char *path, char key[VF_CURVE_KEY_CHARS + 1],
                                  struct vf_err *err)
{
    struct vf_curve_list list;
    enum vf_code code = read_publics(path, 1, &list, err);
    if (code)
        return code;
    zmq_z85_encode(key, list.keys[0], VF_CURVE_KEY_BYTES);
    vf_curve_list_deinit(&list);
    return VF_OK;
}

enum vf_code vf_curve_list_read(const char *path, struct vf_curve_list *out, struct vf_err *err)
{
    return read_publics(path, VF_CURVE_LIST_MAX, out, err);
}

void vf_curve_list_deinit(struct vf_curve_list *list)
{
    free(list->keys);
    list->keys = NULL;
    list->count = 0;
}

bool vf_curve_list_has(const struct vf_curve_list *list, const uint8_t key[VF_CURVE_KEY_BYTES])
{
    for (size_t i = 0; i < list->count; i++)
        if (memcmp(list->keys[i], key, VF_CURVE_KEY_BYTES) == 0)
            return true;
    return false;
}
