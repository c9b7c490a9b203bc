/* Opens every file of a checkpoint and sorts all tensors by name. */
#include "convert/checkpoint.h"

#include "common/base/json.h"
#include "common/base/util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INDEX_NAME      "model.safetensors.index.json"
#define SINGLE_NAME     "model.safetensors"
#define INDEX_BYTES_MAX (64u << 20)
/* Published checkpoints have up to about 200; each costs a file descriptor. */
#define FILES_MAX 1000u

struct vf_checkpoint {
    char *dir;
    struct vf_safetensors **files;
    size_t file_count;
    struct vf_checkpoint_tensor *tensors; /* by name */
    size_t tensor_count;
};

static enum vf_code out_of_memory(const struct vf_checkpoint *c, struct vf_err *err)
{
    return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory for its tensor names", c->dir);
}

static enum vf_code open_file(struct vf_checkpoint *c, const char *name, struct vf_err *err)
{
    struct vf_safetensors **files = realloc(c->files, (c->file_count + 1) * sizeof *files);
    if (!files)
        return out_of_memory(c, err);
    c->files = files;
    char *path = vf_path_join(c->dir, name);
    if (!path)
        return out_of_memory(c, err);
    enum vf_code code = vf_safetensors_open(path, &c->files[c->file_count], err);
    if (!code)
        c->file_count++;
    free(path);
    return code;
}

/* A file name of the index: a plain name beside the index, never a path. */
static enum vf_code check_file_name(const char *where, const char *tensor, const json_t *value,
                                    struct vf_err *err)
{
    static const char suffix[] = ".safetensors";
    const char *name = json_string_value(value);
    size_t n = name ? strlen(name) : 0, s = sizeof suffix - 1;
    char a[VF_NAME_PRINTABLE_BYTES], b[VF_NAME_PRINTABLE_BYTES];
    if (n > s && n == json_string_length(value) && n < 256 && !strchr(name, '/') &&
        strcmp(name + n - s, suffix) == 0)
        return VF_OK;
    return vf_err_set(err, VF_ERR_CORRUPT,
                      "%s: weight_map maps \"%s\" to \"%s\", must be the name of a .safetensors "
                      "file in the same directory",
                      where, vf_name_printable(tensor, a, sizeof a),
                      vf_name_printable(name ? name : "(not a string)", b, sizeof b));
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct file names of a weight map, sorted; the strings are the map's. */
static enum vf_code list_files(const struct vf_checkpoint *c, const char *where, json_t *map,
                               const char ***out, size_t *count, struct vf_err *err)
{
    const char *tensor;
    json_t *value;
    size_t n = 0, distinct = 0;
    const char **names = malloc((json_object_size(map) + 1) * sizeof *names);
    if (!names)
        return out_of_memory(c, err);
    enum vf_code code = VF_OK;
    json_object_foreach(map, tensor, value)
    {
        code = check_file_name(where, tensor, value, err);
        if (code)
            goto out;
        names[n++] = json_string_value(value);
    }
    qsort(names, n, sizeof *names, compare_names);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(names[i], names[i - 1]) != 0)
            names[distinct++] = names[i];
    if (distinct == 0 || distinct > FILES_MAX)
        code = vf_err_set(err, VF_ERR_CORRUPT, "%s: weight_map names %zu files, must be 1 to %u",
                          where, distinct, FILES_MAX);
out:
    if (code) {
        free(names);
        return code;
    }
    *out = names;
    *count = distinct;
    return VF_OK;
}

static int compare_tensors(const void *pa, const void *pb)
{
    const struct vf_checkpoint_tensor *a = pa, *b = pb;
    return strcmp(a->entry->name, b->entry->name);
}

static enum vf_code collect_tensors(struct vf_checkpoint *c, struct vf_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < c->file_count; i++)
        n += vf_safetensors_count(c->files[i]);
    c->tensors = calloc(n + 1, sizeof *c->tensors);
    if (!c->tensors)
        return out_of_memory(c, err);
    for (size_t i = 0; i < c->file_count; i++)
        for (size_t k = 0; k < vf_safetensors_count(c->files[i]); k++)
            c->tensors[c->tensor_count++] = (struct vf_checkpoint_tensor){
                .file = c->files[i], .entry = vf_safetensors_entry(c->files[i], k)};
    qsort(c->tensors, n, sizeof *c->tensors, compare_tensors);
    for (size_t i = 1; i < n; i++) {
        const struct vf_checkpoint_tensor *a = &c->tensors[i - 1], *b = &c->tensors[i];
        char name[VF_NAME_PRINTABLE_BYTES];
        if (strcmp(a->entry->name, b->entry->name) == 0)
            return vf_err_set(err, VF_ERR_CORRUPT, "%s: tensor \"%s\" is in %s, too",
                              vf_safetensors_path(b->file),
                              vf_name_printable(a->entry->name, name, sizeof name),
                              vf_safetensors_path(a->file));
    }
    return VF_OK;
}

static struct vf_checkpoint_tensor *find(const struct vf_checkpoint *c, const char *name)
{
    struct vf_safetensors_entry entry = {.name = name};
    struct vf_checkpoint_tensor key = {.entry = &entry};
    return bsearch(&key, c->tensors, c->tensor_count, sizeof key, compare_tensors);
}

/* Every tensor that the index names must be there, in the file that it names. */
static enum vf_code check_weight_map(const struct vf_checkpoint *c, const char *where, json_t *map,
                                     struct vf_err *err)
{
    const char *tensor;
    json_t *value;
    json_object_foreach(map, tensor, value)
    {
        const struct vf_checkpoint_tensor *t = find(c, tensor);
        const char *path = t ? vf_safetensors_path(t->file) : NULL;
        const char *base = path ? strrchr(path, '/') + 1 : NULL;
        char a[VF_NAME_PRINTABLE_BYTES], b[VF_NAME_PRINTABLE_BYTES];
        if (!t || strcmp(base, json_string_value(value)) != 0)
            return vf_err_set(err, VF_ERR_CORRUPT,
                              "%s: weight_map says tensor \"%s\" is in \"%s\", it isn't", where,
                              vf_name_printable(tensor, a, sizeof a),
                              vf_name_printable(json_string_value(value), b, sizeof b));
    }
    return VF_OK;
}

static enum vf_code open_sharded(struct vf_checkpoint *c, const char *index_path,
                                 struct vf_err *err)
{
    json_t *index = NULL;
    const char **names = NULL;
    size_t count = 0;
    enum vf_code code = vf_json_load(index_path, INDEX_BYTES_MAX, &index, err);
    if (code)
        return code;
    json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map))
        code = vf_err_set(err, VF_ERR_CORRUPT, "%s: weight_map is missing or not an object",
                          index_path);
    if (!code)
        code = list_files(c, index_path, map, &names, &count, err);
    for (size_t i = 0; i < count && !code; i++)
        code = open_file(c, names[i], err);
    if (!code)
        code = collect_tensors(c, err);
    if (!code)
        code = check_weight_map(c, index_path, map, err);
    free(names);
    json_decref(index);
    return code;
}

static enum vf_code open_files(struct vf_checkpoint *c, struct vf_err *err)
{
    char *index_path = vf_path_join(c->dir, INDEX_NAME);
    if (!index_path)
        return out_of_memory(c, err);
    enum vf_code code;
    if (vf_name_exists(index_path)) {
        code = open_sharded(c, index_path, err);
    } else {
        code = open_file(c, SINGLE_NAME, err);
        if (!code)
            code = collect_tensors(c, err);
    }
    free(index_path);
    return code;
}

enum vf_code vf_checkpoint_open(const char *dir, struct vf_checkpoint **out, struct vf_err *err)
{
    struct vf_checkpoint *c = calloc(1, sizeof *c);
    if (!c || !(c->dir = strdup(dir))) {
        free(c);
        return vf_err_set(err, VF_ERR_NO_MEMORY, "%s: no memory", dir);
    }
    enum vf_code code = open_files(c, err);
    if (code) {
        vf_checkpoint_close(c);
        return code;
    }
    *out = c;
    return VF_OK;
}

void vf_checkpoint_close(struct vf_checkpoint *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->file_count; i++)
        vf_safetensors_close(c->files[i]);
    free(c->files);
    free(c->tensors);
    free(c->dir);
    free(c);
}

const char *vf_checkpoint_dir(const struct vf_checkpoint *c)
{
    return c->dir;
}

const struct vf_checkpoint_tensor *vf_checkpoint_take(struct vf_checkpoint *c, const char *name)
{
    struct vf_checkpoint_tensor *t = find(c, name);
    if (t)
        t->taken = true;
    return t;
}

const struct vf_checkpoint_tensor *vf_checkpoint_leftover(const struct vf_checkpoint *c,
                                                          size_t *count)
{
    const struct vf_checkpoint_tensor *first = NULL;
    *count = 0;
    for (size_t i = 0; i < c->tensor_count; i++) {
        if (c->tensors[i].taken)
            continue;
        if (!first)
            first = &c->tensors[i];
        ++*count;
    }
    return first;
}
