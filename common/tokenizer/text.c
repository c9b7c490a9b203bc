#include "common/tokenizer/text.h"

#include "common/base/util.h"

#include <stdlib.h>
#include <string.h>

/* Grows an array of `size`-byte elements to hold `need` of them, doubling; even for none there is
 * memory afterwards. */
static enum vf_code grow(void **data, size_t *cap, size_t need, size_t size, struct vf_err *err)
{
    if (*data && need <= *cap)
        return VF_OK;
    size_t cap_new = *cap ? *cap : 64;
    while (cap_new < need)
        cap_new *= 2;
    void *p = realloc(*data, cap_new * size);
    if (!p)
        return vf_err_set(err, VF_ERR_NO_MEMORY, "tokenizer: no memory for %zu bytes",
                          cap_new * size);
    *data = p;
    *cap = cap_new;
    return VF_OK;
}

enum vf_code vf_text_append(struct vf_text_buf *b, const char *s, size_t n, struct vf_err *err)
{
    if (n > VF_TEXT_BUF_MAX - b->len)
        return vf_err_set(err, VF_ERR_LIMIT, "tokenizer: the text grows beyond %u bytes",
                          VF_TEXT_BUF_MAX);
    void *data = b->data;
    enum vf_code code = grow(&data, &b->cap, b->len + n, 1, err);
    if (code != VF_OK)
        return code;
    b->data = data;
    if (n > 0)
        memcpy(b->data + b->len, s, n);
    b->len += n;
    return VF_OK;
}

void vf_text_buf_deinit(struct vf_text_buf *b)
{
    free(b->data);
    *b = (struct vf_text_buf){0};
}

enum vf_code vf_ids_append(struct vf_ids *ids, const uint32_t *v, size_t n, struct vf_err *err)
{
    void *data = ids->v;
    enum vf_code code = grow(&data, &ids->cap, ids->count + n, sizeof(*ids->v), err);
    if (code != VF_OK)
        return code;
    ids->v = data;
    if (n > 0)
        memcpy(ids->v + ids->count, v, n * sizeof(*v));
    ids->count += n;
    return VF_OK;
}

void vf_work_deinit(struct vf_work *w)
{
    vf_text_buf_deinit(&w->text);
    vf_text_buf_deinit(&w->next_text);
    free(w->pieces.v);
    free(w->next_pieces.v);
    *w = (struct vf_work){0};
}

enum vf_code vf_work_add(struct vf_work *w, struct vf_piece piece, struct vf_err *err)
{
    if (piece.id == VF_PIECE_TEXT && piece.begin == piece.end)
        return VF_OK;
    struct vf_pieces *p = &w->next_pieces;
    void *data = p->v;
    enum vf_code code = grow(&data, &p->cap, p->count + 1, sizeof(*p->v), err);
    if (code != VF_OK)
        return code;
    p->v = data;
    p->v[p->count++] = piece;
    return VF_OK;
}

void vf_work_commit_pieces(struct vf_work *w)
{
    struct vf_pieces done = w->pieces;
    w->pieces = w->next_pieces;
    w->next_pieces = done;
    w->next_pieces.count = 0;
}

void vf_work_commit_text(struct vf_work *w)
{
    struct vf_text_buf done = w->text;
    w->text = w->next_text;
    w->next_text = done;
    w->next_text.len = 0;
    vf_work_commit_pieces(w);
}

uint32_t vf_utf8_next(const char *s, size_t *pos)
{
    const unsigned char *p = (const unsigned char *)s + *pos;
    if (p[0] < 0x80) {
        *pos += 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *pos += 2;
        return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    }
    if (p[0] < 0xf0) {
        *pos += 3;
        return (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    }
    *pos += 4;
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}

size_t vf_utf8_prev(const char *s, size_t pos)
{
    do
        pos--;
    while (pos > 0 && ((unsigned char)s[pos] & 0xc0) == 0x80);
    return pos;
}

size_t vf_utf8_put(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

size_t vf_utf8_invalid_at(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        unsigned char lead = (unsigned char)s[i];
        size_t len = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
        if (len > n - i || (len > 1 && !vf_utf8_valid(s + i, len)))
            return i;
        i += len;
    }
    return n;
}

bool vf_utf8_is_space(uint32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0d) || cp == 0x20 || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}

size_t vf_text_find(const char *s, size_t n, size_t from, const char *needle, size_t n_needle)
{
    if (n - from < n_needle)
        return n;
    const char *hit = memmem(s + from, n - from, needle, n_needle);
    return hit ? (size_t)(hit - s) : n;
}
