/* Properties on random input with fixed seeds: BPE against the plain algorithm, text -> ids ->
 * text, streamed = whole = a plain decoder, invalid UTF-8 refused at the right byte, long words in
 * little time, many threads on one tokenizer. */
#include "streamed.h"
#include "tap.h"

#include <pthread.h>
#include <time.h>

static struct vf_tokenizer *tokenizers[TOKENIZER_COUNT_MAX];
static json_t *files[TOKENIZER_COUNT_MAX];
static int tokenizers_loaded;
static char **token_texts[TOKENIZER_COUNT_MAX]; /* by id */

static void load_all(void)
{
    tokenizers_loaded = tokenizer_count();
    for (int i = 0; i < tokenizers_loaded; i++) {
        struct vf_err err = {0};
        size_t n;
        char *json = tokenizer_file(tokenizer_names[i], "tokenizer.json", &n);
        if (!json) {
            note("no tokenizer %s", tokenizer_names[i]);
            abort();
        }
        files[i] = json_loadb(json, n, 0, NULL);
        if (vf_tokenizer_create(json, n, tokenizer_names[i], &tokenizers[i], &err) != VF_OK) {
            note("%s", err.text);
            abort();
        }
        free(json);
        token_texts[i] = calloc(vf_tokenizer_vocab_size(tokenizers[i]), sizeof(char *));
        const char *key;
        json_t *id;
        json_object_foreach(json_object_get(json_object_get(files[i], "model"), "vocab"), key, id)
            token_texts[i][json_integer_value(id)] = (char *)key;
    }
}

static void unload_all(void)
{
    for (int i = 0; i < tokenizers_loaded; i++) {
        vf_tokenizer_destroy(tokenizers[i]);
        json_decref(files[i]);
        free(token_texts[i]);
    }
}

static size_t put_utf8(char *out, uint32_t c)
{
    int n = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    for (int i = n; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(n == 0 ? c : (uint32_t)((0xf0 << (3 - n)) & 0xff) | c);
    return (size_t)n + 1;
}

/* Any characters but '<' (special tokens) and U+2581 (the metaspace, which isn't reversible). */
static size_t random_text(uint64_t *rng, char *out, size_t letters)
{
    size_t n = 0;
    for (size_t i = 0; i < letters; i++) {
        static const char common[] = " \n\taeiosthr.,'0123";
        uint32_t kind = random_below(rng, 8), c;
        c = kind < 4   ? (unsigned char)common[random_below(rng, sizeof(common) - 1)]
            : kind < 6 ? random_below(rng, 0x80)
            : kind < 7 ? 0x80 + random_below(rng, 0x3000)
                       : random_below(rng, 0x110000);
        if (c == '<' || c == 0x2581 || (c >= 0xd800 && c < 0xe000))
            c = 'x';
        n += put_utf8(out + n, c);
    }
    return n;
}

/* --- text -> ids -> text --- */

static void check_round_trip(int which)
{
    enum { CASES = 1500, LETTERS = 120 };
    uint64_t rng = 1000 + (uint64_t)which;
    int wrong = 0;
    for (int c = 0; c < CASES; c++) {
        static char text[LETTERS * 4];
        struct vf_err err = {0};
        size_t n = random_text(&rng, text, random_below(&rng, LETTERS)), count, n_back = 0;
        uint32_t *ids;
        char *back = NULL;
        if (vf_tokenizer_encode(tokenizers[which], text, n, false, &ids, &count, &err) != VF_OK) {
            wrong++;
            continue;
        }
        wrong += vf_tokenizer_decode(tokenizers[which], ids, count, false, &back, &n_back, &err) !=
                     VF_OK ||
                 n_back != n || memcmp(back, text, n) != 0 || back[n_back] != 0;
        free(ids);
        free(back);
    }
    ok(wrong == 0, "%s: %d random texts come back, %d don't", tokenizer_names[which], CASES, wrong);
}

/* --- invalid input --- */

/* By the table of well-formed sequences, one byte at a time. */
static size_t plain_invalid_at(const unsigned char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        unsigned char a = s[i], lo = 0x80, hi = 0xbf;
        size_t more = a < 0x80 ? 0 : a >= 0xc2 && a <= 0xdf ? 1 : (a >> 4) == 0xe ? 2 : 3;
        if (a >= 0x80 && (a < 0xc2 || a > 0xf4))
            return i;
        lo = a == 0xe0 ? 0xa0 : a == 0xf0 ? 0x90 : lo;
        hi = a == 0xed ? 0x9f : a == 0xf4 ? 0x8f : hi;
        for (size_t k = 1; k <= more; k++, lo = 0x80, hi = 0xbf)
            if (i + k >= n || s[i + k] < lo || s[i + k] > hi)
                return i;
        i += more + 1;
    }
    return n;
}

static void check_bytes(int which)
{
    enum { CASES = 4000 };
    static const unsigned char bytes[] = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf,
                                          0xc0, 0xc2, 0xdf, 0xe0, 0xe1, 0xed, 0xef, 0xf0, 0xf3,
                                          0xf4, 0xf5, 0xff, ' ',  'e',  0xc3, 0xa9};
    uint64_t rng = 2000 + (uint64_t)which;
    int wrong = 0, valid = 0;
    for (int c = 0; c < CASES; c++) {
        char text[16], says[64];
        struct vf_err err = {0};
        size_t n = random_below(&rng, sizeof(text)), count;
        uint32_t *ids;
        for (size_t i = 0; i < n; i++)
            text[i] = (char)bytes[random_below(&rng, sizeof(bytes))];
        size_t bad = plain_invalid_at((unsigned char *)text, n);
        enum vf_code code =
            vf_tokenizer_encode(tokenizers[which], text, n, true, &ids, &count, &err);
        snprintf(says, sizeof(says), "at offset %zu", bad);
        wrong += bad == n ? code != VF_OK : code != VF_ERR_CORRUPT || !strstr(err.text, says);
        valid += bad == n;
        if (code == VF_OK)
            free(ids);
    }
    note("%d of %d byte strings are UTF-8", valid, CASES);
    ok(wrong == 0 && valid > 0 && valid < CASES, "%s: random bytes, %d wrong",
       tokenizer_names[which], wrong);
}

/* --- decoding --- */

static uint32_t next_char(const char **s)
{
    const unsigned char *p = (const unsigned char *)*s;
    int more = p[0] < 0x80 ? 0 : p[0] < 0xe0 ? 1 : p[0] < 0xf0 ? 2 : 3;
    uint32_t c = more == 0 ? p[0] : p[0] & (0x3fu >> more);
    for (int i = 1; i <= more; i++)
        c = c << 6 | (p[i] & 0x3fu);
    *s += more + 1;
    return c;
}

/* Bytes to UTF-8 with U+FFFD for every longest piece that could have begun a character. */
static void add_lossy(struct str *out, const unsigned char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t good = plain_invalid_at(s + i, n - i);
        str_add(out, (const char *)s + i, good);
        i += good;
        if (i == n)
            break;
        /* The longest beginning here that some continuation would make valid. */
        size_t len = 1;
        for (size_t k = 2; k <= 3 && i + k <= n; k++) {
            unsigned char probe[4];
            bool can = false;
            for (int b = 0x80; b < 0xc0 && !can; b++) {
                memcpy(probe, s + i, k);
                probe[k] = (unsigned char)b;
                can = plain_invalid_at(probe, k + 1) == k + 1;
                if (k == 2 && !can)
                    for (int d = 0x80; d < 0xc0 && !can; d++) {
                        probe[3] = (unsigned char)d;
                        can = plain_invalid_at(probe, 4) == 4;
                    }
            }
            if (!can)
                break;
            len = k;
        }
        str_add(out, "\xef\xbf\xbd", 3);
        i += len;
    }
}

/* GPT-2's table the way its authors build it: the visible bytes, then the others from U+0100. */
static int byte_of_char(uint32_t c)
{
    int others = 0;
    for (int b = 0; b < 256; b++) {
        bool visible = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (c == (visible ? (uint32_t)b : 0x100u + (uint32_t)others))
            return b;
        others += !visible;
    }
    return -1;
}

static void plain_byte_level(int which, const uint32_t *ids, size_t n, struct str *out)
{
    struct str bytes = {0};
    for (size_t i = 0; i < n; i++) {
        const char *s = token_texts[which][ids[i]];
        while (*s) {
            char b = (char)byte_of_char(next_char(&s));
            str_add(&bytes, &b, 1);
        }
    }
    add_lossy(out, (unsigned char *)bytes.s, bytes.n);
    free(bytes.s);
}

/* Llama's: metaspaces to spaces, runs of byte tokens to text or U+FFFDs, one leading space off. */
static void plain_llama(int which, const uint32_t *ids, size_t n, struct str *out)
{
    struct str all = {0}, run = {0};
    str_add(&all, "", 0);
    for (size_t i = 0; i <= n; i++) {
        const char *s = i < n ? token_texts[which][ids[i]] : "";
        unsigned byte;
        if (i < n && strlen(s) == 6 && sscanf(s, "<0x%2X>", &byte) == 1) {
            char b = (char)byte;
            str_add(&run, &b, 1);
            continue;
        }
        bool valid = plain_invalid_at((unsigned char *)run.s, run.n) == run.n;
        for (size_t k = 0; k < run.n && !valid; k++)
            str_add(&all, "\xef\xbf\xbd", 3);
        if (valid && run.n > 0)
            str_add(&all, run.s, run.n);
        run.n = 0;
        for (; *s; s += strncmp(s, "\xe2\x96\x81", 3) == 0 ? 3 : 1)
            str_add(&all, strncmp(s, "\xe2\x96\x81", 3) == 0 ? " " : s, 1);
    }
    size_t skip = all.n > 0 && all.s[0] == ' ';
    str_add(out, all.s + skip, all.n - skip);
    free(all.s);
    free(run.s);
}

static uint32_t random_id(uint64_t *rng, uint32_t size)
{
    uint32_t kind = random_below(rng, 4); /* low ids are byte tokens in all three */
    return random_below(rng, kind == 0 ? size : kind == 1 ? 10 : 260);
}

static void check_random_ids(int which)
{
    enum { CASES = 3000, LENGTH = 40 };
    uint64_t rng = 3000 + (uint64_t)which;
    int wrong = 0, wrong_stream = 0, broken = 0;
    for (int c = 0; c < CASES; c++) {
        uint32_t ids[LENGTH];
        struct vf_err err = {0};
        size_t n = random_below(&rng, LENGTH), n_text = 0;
        char *text = NULL;
        struct str want = {0}, got = {0};
        for (size_t i = 0; i < n; i++)
            ids[i] = random_id(&rng, vf_tokenizer_vocab_size(tokenizers[which]));
        str_add(&want, "", 0);
        if (which == 0)
            plain_llama(which, ids, n, &want);
        else
            plain_byte_level(which, ids, n, &want);
        wrong +=
            vf_tokenizer_decode(tokenizers[which], ids, n, false, &text, &n_text, &err) != VF_OK ||
            n_text != want.n || memcmp(text, want.s, want.n) != 0;
        wrong_stream += !streamed(tokenizers[which], ids, n, false, &got) || got.n != want.n ||
                        memcmp(got.s, want.s, want.n) != 0;
        broken += strstr(want.s, "\xef\xbf\xbd") != NULL;
        free(text);
        free(want.s);
        free(got.s);
    }
    note("%d of %d sequences have broken characters", broken, CASES);
    ok(wrong == 0 && wrong_stream == 0 && broken > 100,
       "%s: random ids decode as the plain decoder says, %d wrong whole, %d wrong streamed",
       tokenizer_names[which], wrong, wrong_stream);
}

static void check_specials(int which)
{
    const struct vf_tokenizer *t = tokenizers[which];
    const json_t *added = json_object_get(files[which], "added_tokens");
    uint32_t id = (uint32_t)json_integer_value(json_object_get(json_array_get(added, 0), "id"));
    uint32_t size = vf_tokenizer_vocab_size(t), specials = 0;
    for (uint32_t i = 0; i < size; i++)
        specials += vf_tokenizer_token_is_special(t, i);
    uint32_t ids[] = {id, size, UINT32_MAX, id};
    struct vf_err err = {0};
    char *text = NULL;
    size_t n = 1;
    enum vf_code code = vf_tokenizer_decode(t, ids, 4, true, &text, &n, &err);
    ok(specials == json_array_size(added) && vf_tokenizer_token_is_special(t, id) &&
           !vf_tokenizer_token_is_special(t, size) && code == VF_OK && n == 0,
       "%s: special tokens are skipped, unknown ids give nothing", tokenizer_names[which]);
    free(text);
}

/* --- BPE --- */

struct symbol {
    char s[128];
};

static json_int_t merge_rank(const json_t *ranks, const struct symbol *a, const struct symbol *b)
{
    char key[300];
    snprintf(key, sizeof(key), "%s %s", a->s, b->s);
    const json_t *rank = json_object_get(ranks, key);
    return rank ? json_integer_value(rank) : INT64_MAX;
}

/* Merges the best pair, leftmost first, until none is left. */
static size_t plain_bpe(const json_t *ranks, struct symbol *symbols, size_t count)
{
    for (;;) {
        json_int_t best = INT64_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            json_int_t rank = merge_rank(ranks, &symbols[i], &symbols[i + 1]);
            if (rank < best) {
                best = rank;
                at = i;
            }
        }
        if (best == INT64_MAX)
            return count;
        size_t left = strlen(symbols[at].s), right = strlen(symbols[at + 1].s);
        if (left + right >= sizeof(symbols[at].s))
            abort();
        memcpy(symbols[at].s + left, symbols[at + 1].s, right + 1);
        memmove(symbols + at + 1, symbols + at + 2, (count - at - 2) * sizeof(*symbols));
        count--;
    }
}

static json_t *merge_ranks(int which)
{
    const json_t *merges = json_object_get(json_object_get(files[which], "model"), "merges");
    json_t *ranks = json_object();
    for (size_t i = 0; i < json_array_size(merges); i++)
        json_object_set_new(ranks, json_string_value(json_array_get(merges, i)),
                            json_integer((json_int_t)i));
    return ranks;
}

/* Words of letters that merge a lot, with stories260k, whose pre-tokenizer cuts nothing. */
static void check_bpe(void)
{
    enum { CASES = 1500, LENGTH = 60 };
    static struct symbol symbols[LENGTH + 1];
    uint64_t rng = 4000;
    int wrong = 0;
    json_t *ranks = merge_ranks(0);
    const json_t *vocab = json_object_get(json_object_get(files[0], "model"), "vocab");
    for (int c = 0; c < CASES; c++) {
        static const char letters[] = "thenadi esorw";
        char text[LENGTH + 1];
        struct vf_err err = {0};
        size_t n = 1 + random_below(&rng, LENGTH), count;
        uint32_t *ids;
        strcpy(symbols[0].s, "\xe2\x96\x81");
        for (size_t i = 0; i < n; i++) {
            text[i] = letters[random_below(&rng, sizeof(letters) - 1)];
            snprintf(symbols[i + 1].s, sizeof(symbols[0].s), "%.*s", text[i] == ' ' ? 3 : 1,
                     text[i] == ' ' ? "\xe2\x96\x81" : text + i);
        }
        size_t want = plain_bpe(ranks, symbols, n + 1);
        if (vf_tokenizer_encode(tokenizers[0], text, n, false, &ids, &count, &err) != VF_OK) {
            wrong++;
            continue;
        }
        bool same = count == want;
        for (size_t i = 0; i < want && same; i++)
            same = json_integer_value(json_object_get(vocab, symbols[i].s)) == (json_int_t)ids[i];
        wrong += !same;
        free(ids);
    }
    json_decref(ranks);
    ok(wrong == 0, "BPE merges as the plain algorithm does, %d of %d wrong", wrong, CASES);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A quadratic algorithm would need many minutes for these. */
static void check_long(int which)
{
    enum { N = 1 << 20, KINDS = 5 };
    static const char *const kinds[KINDS] = {"one letter", "letters", "spaces", "lines", "marks"};
    char *text = malloc(N);
    double worst = 0;
    bool good = text != NULL;
    for (int kind = 0; kind < KINDS && good; kind++) {
        struct vf_err err = {0};
        uint64_t rng = 5000;
        uint32_t *ids;
        size_t count;
        for (size_t i = 0; i < N; i++)
            text[i] = kind == 0   ? 'a'
                      : kind == 1 ? (char)('a' + random_below(&rng, 26))
                      : kind == 2 ? ' '
                      : kind == 3 ? " \r\n\n"[random_below(&rng, 4)]
                                  : "\xcc\x81\xcc\xa7"[i % 4];
        double begin = seconds();
        good = vf_tokenizer_encode(tokenizers[which], text, N, false, &ids, &count, &err) == VF_OK;
        double took = seconds() - begin;
        worst = took > worst ? took : worst;
        note("%s: 1 MiB of %s: %zu ids in %.3f s", tokenizer_names[which], kinds[kind],
             good ? count : 0, took);
        if (good)
            free(ids);
        else
            note("%s", err.text);
    }
    free(text);
    ok(good && worst < 30, "%s: a text of 1 MiB in one word", tokenizer_names[which]);
}

/* --- hostile expressions --- */

static enum vf_code encode_split(const char *regex, const char *text, size_t n, double *took)
{
    json_t *root = json_deep_copy(files[1]);
    struct vf_err err = {0};
    struct vf_tokenizer *t;
    uint32_t *ids;
    size_t count;
    json_object_set_new(root, "pre_tokenizer",
                        json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                                  regex, "behavior", "Isolated", "invert", 0));
    char *json = json_dumps(root, JSON_COMPACT);
    enum vf_code code = vf_tokenizer_create(json, strlen(json), "split", &t, &err);
    double begin = seconds();
    if (code == VF_OK)
        code = vf_tokenizer_encode(t, text, n, false, &ids, &count, &err);
    *took = seconds() - begin;
    if (code == VF_OK)
        free(ids);
    else
        note("%s", err.text);
    vf_tokenizer_destroy(t);
    free(json);
    json_decref(root);
    return code;
}

static void check_hostile(void)
{
    enum { N = 300000 };
    char *text = malloc(N);
    double took = 0;
    if (!text)
        abort();
    memset(text, 'a', N);
    enum vf_code code = encode_split("(?:a|b)*", text, N, &took);
    ok(code == VF_OK, "a long match of a group: %.3f s", took);
    text[30] = '!';
    code = encode_split("(?:a+)+$", text, 31, &took);
    ok(code == VF_ERR_LIMIT && took < 10, "endless backtracking is refused: %.3f s", took);
    free(text);
}

static void check_empty(void)
{
    const struct vf_tokenizer *t = tokenizers[tokenizers_loaded - 1];
    bool special = tokenizers_loaded == TOKENIZER_COUNT_MAX; /* gpt2 adds no special token */
    struct vf_err err = {0};
    uint32_t *ids = NULL;
    size_t count = 1, n = 1;
    char *text = NULL;
    enum vf_code code = vf_tokenizer_encode(t, NULL, 0, special, &ids, &count, &err);
    if (code == VF_OK)
        code = vf_tokenizer_decode(t, NULL, 0, true, &text, &n, &err);
    ok(code == VF_OK && ids && count == 0 && text && n == 0 && text[0] == 0,
       "nothing is nothing, and is freed as usual");
    free(ids);
    free(text);
}

/* --- threads --- */

struct job {
    uint32_t *ids;
    size_t count;
    const char *text;
    size_t n;
};

static void *encode_again(void *arg)
{
    struct job *job = arg;
    struct vf_err err = {0};
    for (int i = 0; i < 20; i++) {
        free(job->ids);
        job->ids = NULL;
        if (vf_tokenizer_encode(tokenizers[tokenizers_loaded - 1], job->text, job->n, true,
                                &job->ids, &job->count, &err) != VF_OK)
            return NULL;
    }
    return NULL;
}

static void check_threads(void)
{
    enum { THREADS = 4, LETTERS = 2000 };
    static char text[LETTERS * 4];
    uint64_t rng = 6000;
    size_t n = random_text(&rng, text, LETTERS);
    pthread_t threads[THREADS];
    struct job jobs[THREADS];
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){.text = text, .n = n};
        if (pthread_create(&threads[i], NULL, encode_again, &jobs[i]) != 0)
            abort();
    }
    bool same = true;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        same = same && jobs[i].ids && jobs[i].count == jobs[0].count &&
               memcmp(jobs[i].ids, jobs[0].ids, jobs[0].count * sizeof(uint32_t)) == 0;
    }
    for (int i = 0; i < THREADS; i++)
        free(jobs[i].ids);
    ok(same && jobs[0].count > 1000, "%d threads on one tokenizer get the same ids", THREADS);
}

int main(void)
{
    load_all();
    plan(tokenizers_loaded * 5 + 5);
    for (int i = 0; i < tokenizers_loaded; i++) {
        check_round_trip(i);
        check_bytes(i);
        check_random_ids(i);
        check_specials(i);
        check_long(i);
    }
    check_bpe();
    check_hostile();
    check_empty();
    check_threads();
    unload_all();
    return 0;
}
