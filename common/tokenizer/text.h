/* Working memory of one encode or decode: growing byte buffers, UTF-8 steps, and a text cut into
 * pieces. Every stage of an encode reads the pieces and writes the next ones.
 */
#ifndef VF_COMMON_TOKENIZER_TEXT_H
#define VF_COMMON_TOKENIZER_TEXT_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VF_TEXT_BUF_MAX (1u << 30) /* offsets stay in 32 bits */
/* Normalizers and decoders may grow a text of n bytes to, or by, so much and no more. Compatibility
 * forms grow a character up to 11-fold, a mark for spaces 3-fold; a chain of replacements that
 * doubles a text at each step would end nowhere. */
static inline size_t vf_text_growth_max(size_t n)
{
    return (64u << 10) + 32 * n;
}

struct vf_text_buf {
    char *data;
    size_t len, cap;
};
enum vf_code vf_text_append(struct vf_text_buf *b, const char *s, size_t n, struct vf_err *err);
void vf_text_buf_deinit(struct vf_text_buf *b);

struct vf_ids {
    uint32_t *v;
    size_t count, cap;
};
enum vf_code vf_ids_append(struct vf_ids *ids, const uint32_t *v, size_t n, struct vf_err *err);

#define VF_PIECE_TEXT UINT32_MAX
struct vf_piece {
    size_t begin, end; /* in the text buffer */
    uint32_t id;       /* an added token's id; VF_PIECE_TEXT for text */
    bool at_start;     /* begins where the whole input begins */
};
struct vf_pieces {
    struct vf_piece *v;
    size_t count, cap;
};

struct vf_work {
    struct vf_text_buf text, next_text;
    struct vf_pieces pieces, next_pieces;
};
void vf_work_deinit(struct vf_work *w);
/* One piece [begin, end) more in next_pieces; an empty text piece is left out. */
enum vf_code vf_work_add(struct vf_work *w, struct vf_piece piece, struct vf_err *err);
/* The next pieces become the pieces; with text, the next text becomes the text as well. */
void vf_work_commit_pieces(struct vf_work *w);
void vf_work_commit_text(struct vf_work *w);

/* The code point at s[*pos], which must be valid UTF-8; moves *pos behind it. */
uint32_t vf_utf8_next(const char *s, size_t *pos);
/* The start of the character that ends at pos > 0 of valid UTF-8. */
size_t vf_utf8_prev(const char *s, size_t pos);
/* Writes cp as UTF-8, returns its length. */
size_t vf_utf8_put(uint32_t cp, char out[4]);
/* Offset of the first byte that isn't valid UTF-8; n when all are. */
size_t vf_utf8_invalid_at(const char *s, size_t n);
/* Unicode White_Space. */
bool vf_utf8_is_space(uint32_t cp);

/* The first occurrence of needle (n_needle > 0) at or behind `from`; n if there is none. */
size_t vf_text_find(const char *s, size_t n, size_t from, const char *needle, size_t n_needle);

#endif
