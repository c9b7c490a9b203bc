/* Names what people give instead of a model file, and the command that makes one of it. */
#include "common/base/util.h"
#include "common/format/model_file_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORD_BYTES 256u /* of a path that is quoted; a longer one is only described */

/* A path as a word of the shell, and of no option's. False: it doesn't fit. */
static bool shell_word(const char *path, size_t n, const char *suffix, char out[WORD_BYTES])
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                "_@%+=:,./-";
    const char *here = n && path[0] == '-' ? "./" : "";
    const char *quote = strspn(path, plain) >= n ? "" : "'";
    if (n + strlen(suffix) + 8 > WORD_BYTES || memchr(path, '\'', n))
        return false;
    snprintf(out, WORD_BYTES, "%s%s%.*s%s%s", quote, here, (int)n, path, suffix, quote);
    return true;
}

/* The model file's name: the source's last part without its ending, in the current directory. */
static bool output_word(const char *path, char out[WORD_BYTES])
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    const char *name = path + begin;
    size_t n = end - begin;
    if (n > strlen(".gguf") && strncmp(name + n - strlen(".gguf"), ".gguf", strlen(".gguf")) == 0)
        n -= strlen(".gguf");
    if (n == 0 || strspn(name, ".") >= n)
        return shell_word("model", strlen("model"), ".vflow", out);
    return shell_word(name, n, ".vflow", out);
}

static enum vf_code refuse(const char *path, const char *source, size_t source_bytes,
                           const char *what, struct vf_err *err)
{
    char from[WORD_BYTES], to[WORD_BYTES];
    char *given = strndup(source, source_bytes);
    bool fits = given && shell_word(given, source_bytes, "", from) && output_word(given, to);
    free(given);
    if (!fits)
        return vf_err_set(err, VF_ERR_CORRUPT,
                          "%.256s is %s, must be a model file: vflow-convert makes one of it", path,
                          what);
    return vf_err_set(err, VF_ERR_CORRUPT,
                      "%.256s is %s, must be a model file: vflow-convert %s -o %s makes one of it",
                      path, what, from, to);
}

static bool is_checkpoint(const char *dir)
{
    struct stat st;
    char *config = vf_path_join(dir, "config.json");
    bool found = stat(dir, &st) == 0 && S_ISDIR(st.st_mode) && config && vf_name_exists(config);
    free(config);
    return found;
}

static bool is_safetensors(const char *path)
{
    static const char ending[] = ".safetensors";
    size_t n = strlen(path);
    return n >= strlen(ending) && strcmp(path + n - strlen(ending), ending) == 0;
}

enum vf_code vf_model_refuse_directory(const char *path, struct vf_err *err)
{
    return is_checkpoint(path)
               ? refuse(path, path, strlen(path), "a directory with a checkpoint", err)
               : VF_OK;
}

enum vf_code vf_model_refuse_unconverted(const char *path, int fd, struct vf_err *err)
{
    char magic[4] = "";
    if (pread(fd, magic, sizeof magic, 0) == sizeof magic && memcmp(magic, "GGUF", 4) == 0)
        return refuse(path, path, strlen(path), "a GGUF file", err);
    if (!is_safetensors(path))
        return VF_OK;
    const char *slash = strrchr(path, '/');
    return slash ? refuse(path, path, (size_t)(slash - path) + 1, "a checkpoint's weights", err)
                 : refuse(path, ".", 1, "a checkpoint's weights", err);
}
