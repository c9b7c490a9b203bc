/* Broken and unknown tokenizer.json files, made from good ones: each is refused with one sentence
 * that names the file, the place, what was found and what is allowed; nothing crashes. */
#include "common/tokenizer/tokenizer.h"
#include "support.h"
#include "tap.h"

#define WHERE "some/tokenizer.json"

struct edit {
    const char *path;  /* keys and indices with '/' between; "" is the whole file */
    const char *value; /* JSON text; NULL removes */
    enum vf_code code;
    const char *says; /* part of the message */
};

#define C VF_ERR_CORRUPT
#define U VF_ERR_UNSUPPORTED

#define ADDED(id, content, rest)                                                                   \
    "{\"id\":" id ",\"content\":" content                                                          \
    ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false" rest "}"
#define SPECIAL ",\"special\":true"
#define SPLIT(regex)                                                                               \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex                                          \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}"

static const struct edit edits[] = {
    {"", "[]", C, "must be an object"},
    {"", "7", C, "not valid JSON"},
    {"", "{}", C, "model: found nothing, must be an object"},
    {"version", "\"2.0\"", U, "version: found \"2.0\", allowed are 1.0"},
    {"version", "1.0", C, "version: found 1, must be a string"},
    {"surprise", "1", U, "unknown field \"surprise\""},

    {"model", "null", C, "model: found null, must be an object"},
    {"model", "[]", C, "model: found an array"},
    {"model/type", "\"WordPiece\"", U, "model.type: found \"WordPiece\", allowed are BPE"},
    {"model/type", "\"Unigram\"", U, "allowed are BPE"},
    {"model/type", "3", C, "model.type: found 3, must be a string"},
    {"model/dropout", "0.1", U, "model.dropout: found 0.1"},
    {"model/continuing_subword_prefix", "\"##\"", U, "found \"##\""},
    {"model/end_of_word_suffix", "\"</w>\"", U, "model.end_of_word_suffix: found \"</w>\""},
    {"model/unk_token", "\"<nope>\"", C, "must be one of model.vocab"},
    {"model/unk_token", "5", C, "model.unk_token: found 5, must be a string"},
    {"model/fuse_unk", "\"yes\"", C, "must be true or false"},
    {"model/byte_fallback", "0", C, "model.byte_fallback: found 0, must be true or false"},
    {"model/ignore_merges", "[]", C, "model.ignore_merges"},
    {"model/cache", "1", U, "unknown field \"cache\""},
    {"model/vocab", NULL, C, "model.vocab: found nothing, must be an object"},
    {"model/vocab", "{}", C, "at least one is needed"},
    {"model/vocab", "[[\"a\",0.1]]", C, "model.vocab: found an array"},
    {"model/vocab/a", "\"7\"", C, "must be an integer from 0 to 4194303"},
    {"model/vocab/a", "-1", C, "has the id -1"},
    {"model/vocab/a", "4194304", C, "has the id 4194304"},
    {"model/vocab/a", "4294967296", C, "has the id 4294967296"},
    {"model/vocab/a", "9223372036854775807", C, "has the id 9223372036854775807"},
    {"model/vocab/a", "1.5", C, "has the id 1.5"},
    {"model/vocab/a", "null", C, "has the id null"},
    {"model/vocab/new", "3", C, "ids must be unique"},
    {"model/vocab/he", NULL, C, "model.merges[1]: found the token \"he\""},
    {"model/vocab/t", NULL, C, "model.merges[0]: found the token \"t\""},
    {"model/merges", NULL, C, "model.merges: found nothing, must be an array"},
    {"model/merges", "{}", C, "model.merges: found an object"},
    {"model/merges/3", "5", C, "model.merges[3]: found 5, all merges must be of one kind"},
    {"model/merges/3", "[\"h\",\"e\"]", C, "all merges must be of one kind"},
    {"model/merges/3", "\"he\"", C, "must be \"left right\" or [\"left\", \"right\"]"},
    {"model/merges/3", "\"h e r\"", C, "model.merges[3]: found \"h e r\""},
    {"model/merges/3", "\"\"", C, "model.merges[3]: found \"\""},
    {"model/merges/3", "\"h zzz\"", C, "found the token \"zzz\""},
    {"model/merges", "[[\"h\"]]", C, "model.merges[0]: found an array"},
    {"model/merges", "[[\"h\",3]]", C, "model.merges[0]: found an array"},

    {"added_tokens", "{}", C, "added_tokens: found an object, must be an array"},
    {"added_tokens/0", "\"<s>\"", C, "added_tokens[0]: found \"<s>\", must be an object"},
    {"added_tokens/1/id", NULL, C, "added_tokens[1]: id is missing"},
    {"added_tokens/1/id", "\"1\"", C, "added_tokens[1]: id is a string"},
    {"added_tokens/1/id", "-5", C, "id is -5"},
    {"added_tokens/1/id", "4294967295", C, "id is 4294967295, must be from 0 to 4194303"},
    {"added_tokens/1/id", "7", C, "added_tokens[1].id: found 7 for \"<s>\", must be 1"},
    {"added_tokens/1/content", "\"\"", C, "a text of 0 bytes"},
    {"added_tokens/1/content", "7", C, "added_tokens[1].content: found 7, must be a string"},
    {"added_tokens/1/content", "\"<new>\"", C, "another token has it"},
    {"added_tokens/1/lstrip", "1", C, "added_tokens[1].lstrip: found 1"},
    {"added_tokens/1/special", NULL, C, "added_tokens[1].special: found nothing"},
    {"added_tokens/1/colour", "1", U, "unknown field \"colour\""},
    {"added_tokens", "[" ADDED("600", "\"x1\"", SPECIAL) "," ADDED("600", "\"x2\"", SPECIAL) "]", C,
     "ids must be unique"},
    {"added_tokens", "[" ADDED("600", "\"x1\"", SPECIAL) "," ADDED("601", "\"x1\"", SPECIAL) "]", C,
     "a second time"},

    {"normalizer", "5", C, "normalizer: found 5, must be an object"},
    {"normalizer", "{\"type\":\"Lowercase\"}", U, "normalizer.type: found \"Lowercase\""},
    {"normalizer", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"\"}", U, "Precompiled"},
    {"normalizer", "{}", C, "normalizer.type: found nothing"},
    {"normalizer/normalizers", "{}", C, "normalizer.normalizers: found an object"},
    {"normalizer/normalizers/0/prepend", "1", C, "normalizer.normalizers[0].prepend: found 1"},
    {"normalizer/normalizers/1/pattern", "\" \"", C, "pattern: found \" \", must be an object"},
    {"normalizer/normalizers/1/pattern", "{\"String\":\"\"}", U, "a string of 0 bytes"},
    {"normalizer/normalizers/1/pattern", "{\"Regex\":\"(\"}", C, "invalid: missing closing"},
    {"normalizer/normalizers/1/pattern", "{\"Glob\":\"*\"}", U, "unknown field \"Glob\""},
    {"normalizer/normalizers/1/content", "null", C, "content: found null, must be a string"},
    {"normalizer",
     "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Sequence\",\"normalizers\":["
     "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Sequence\",\"normalizers\":["
     "{\"type\":\"Sequence\",\"normalizers\":[]}]}]}]}]}",
     U, "nested deeper than 4"},

    {"pre_tokenizer", "{\"type\":\"Whitespace\"}", U, "pre_tokenizer.type: found \"Whitespace\""},
    {"pre_tokenizer", "{\"type\":\"BertPreTokenizer\"}", U, "BertPreTokenizer"},
    {"pre_tokenizer", "\"ByteLevel\"", C, "pre_tokenizer: found \"ByteLevel\""},
    {"pre_tokenizer", "{\"type\":\"ByteLevel\",\"use_regex\":1}", C, "use_regex: found 1"},
    {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"__\"}", C, "a single character"},
    {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"often\"}",
     U, "prepend_scheme: found \"often\", allowed are always, first, never"},
    {"pre_tokenizer",
     "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\","
     "\"add_prefix_space\":false}",
     C, "must agree with prepend_scheme"},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"Shredded\",\"invert\":"
     "false}",
     U, "behavior: found \"Shredded\""},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"Isolated\"}", C,
     "invert: found nothing"},
    {"pre_tokenizer", SPLIT("[a"), C, "is invalid"},
    {"pre_tokenizer", SPLIT("a{5,2}"), C, "is invalid"},
    {"pre_tokenizer", SPLIT("*"), C, "is invalid"},
    {"pre_tokenizer", SPLIT("\\\\p{Klingon}"), C, "is invalid"},
    {"pre_tokenizer", SPLIT("(?:(?:(?:ab){900}){900}){900}"), C, "is invalid"},
    {"pre_tokenizer", SPLIT("\\\\"), U, "allowed escapes"},
    {"pre_tokenizer", SPLIT("\\\\p"), U, "allowed escapes"},
    {"pre_tokenizer", SPLIT("\\\\p{L"), U, "closing brace"},
    {"pre_tokenizer", SPLIT("(a)\\\\1"), U, "allowed escapes"},
    {"pre_tokenizer", SPLIT("a\\\\Kb"), U, "found \"\\K\" at byte 1"},
    {"pre_tokenizer", SPLIT("\\\\Qa\\\\E"), U, "allowed escapes"},
    {"pre_tokenizer", SPLIT("[a-z&&[^b]]"), U, "intersections"},
    {"pre_tokenizer", SPLIT("[[:alpha:]]"), U, "found \"[:\""},
    {"pre_tokenizer", SPLIT("(?<n>a)"), U, "allowed groups"},
    {"pre_tokenizer", SPLIT("(*COMMIT)a"), U, "allowed groups"},
    {"pre_tokenizer", SPLIT("a{1,2}+"), U, "intervals"},
    {"pre_tokenizer", SPLIT("\\\\xE9"), U, "allowed are \\uHHHH"},

    {"post_processor", "{\"type\":\"BertProcessing\"}", U, "post_processor.type"},
    {"post_processor", "[]", C, "post_processor: found an array"},
    {"post_processor/single", "\"$A\"", C, "post_processor.single: found \"$A\", must be an array"},
    {"post_processor/single/0/SpecialToken/id", "\"<x>\"", C, "found no entry for \"<x>\""},
    {"post_processor/single/1/Sequence/id", "\"B\"", U, "allowed is A, once"},
    {"post_processor/single/1", NULL, U, "found no sequence A"},
    {"post_processor/special_tokens/<s>/ids/0", "99999", C, "must be the id of a token"},
    {"post_processor/special_tokens/<s>/ids/0", "-1", C, "must be the id of a token"},
    {"post_processor/special_tokens/<s>/ids", "1", C, "ids: found 1, must be an array"},
    {"post_processor/special_tokens", NULL, C, "special_tokens: found nothing"},

    {"decoder", "{\"type\":\"WordPiece\"}", U, "decoder.type: found \"WordPiece\""},
    {"decoder", "3", C, "decoder: found 3"},
    {"decoder/decoders/0/pattern", "{\"Regex\":\"a\"}", U,
     "unknown field \"Regex\", allowed are String"},
    {"decoder/decoders/3/stop", "1", U, "decoder.decoders[3].stop: found 1, allowed is 0"},
    {"decoder/decoders/3/start", "-1", C, "start is -1"},
    {"decoder/decoders/3/content", "\"ab\"", C, "a single character"},
    {"decoder/decoders", "[{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"}]", U,
     "ByteFallback  behind Fuse"},
    {"decoder/decoders",
     "[{\"type\":\"Fuse\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\"ab\"},\"content\":\"\"}"
     "]",
     U, "of several characters behind Fuse"},
};
#define EDIT_COUNT ((int)VF_ARRAY_LEN(edits))

static json_t *child(json_t *at, const char *key, size_t n)
{
    char name[64];
    snprintf(name, sizeof(name), "%.*s", (int)n, key);
    return json_is_array(at) ? json_array_get(at, (size_t)atoi(name)) : json_object_get(at, name);
}

static bool put(json_t *at, const char *key, json_t *value)
{
    if (json_is_array(at))
        return value ? json_array_set_new(at, (size_t)atoi(key), value) == 0
                     : json_array_remove(at, (size_t)atoi(key)) == 0;
    return value ? json_object_set_new(at, key, value) == 0 : json_object_del(at, key) == 0;
}

/* The good file with one place changed, as text; NULL when the place doesn't exist. */
static char *edited(const json_t *good, const struct edit *e)
{
    json_error_t jerr;
    json_t *value = e->value ? json_loads(e->value, JSON_DECODE_ANY, &jerr) : NULL;
    if (e->value && !value)
        return NULL;
    if (e->path[0] == 0) {
        char *text = json_dumps(value, JSON_ENCODE_ANY);
        json_decref(value);
        return text;
    }
    json_t *root = json_deep_copy(good), *at = root;
    const char *key = e->path;
    for (const char *slash; (slash = strchr(key, '/')) && at; key = slash + 1)
        at = child(at, key, (size_t)(slash - key));
    char *text = at && put(at, key, value) ? json_dumps(root, 0) : NULL;
    json_decref(root);
    return text;
}

static bool is_sentence(const char *s)
{
    return strncmp(s, WHERE ":", sizeof(WHERE)) == 0 && strlen(s) < 600 && !strchr(s, '\n') &&
           vf_utf8_valid(s, strlen(s));
}

static void check_edit(const json_t *good, const struct edit *e)
{
    struct vf_err err = {0};
    struct vf_tokenizer *t = NULL;
    char *text = edited(good, e);
    enum vf_code code = text ? vf_tokenizer_create(text, strlen(text), WHERE, &t, &err) : VF_OK;
    bool good_message = is_sentence(err.text) && strstr(err.text, e->says);
    if (!ok(text && code == e->code && good_message && !t, "%s = %.60s", e->path,
            e->value ? e->value : "(removed)"))
        note("expected code %d saying '%s', got %d", (int)e->code, e->says, (int)code);
    note("%s", text ? err.text : "the edit doesn't apply");
    vf_tokenizer_destroy(t);
    free(text);
}

/* Loads; if that works, uses it. Returns false for a refusal that isn't a sentence. */
static bool survives(const char *json, size_t n, int *loaded)
{
    struct vf_err err = {0};
    struct vf_tokenizer *t;
    enum vf_code code = vf_tokenizer_create(json, n, WHERE, &t, &err);
    if (code != VF_OK)
        return (code == C || code == U) && is_sentence(err.text);
    (*loaded)++;
    uint32_t *ids = NULL;
    size_t count;
    static const char text[] = "  Once <s>upon\n \xe2\x96\x81"
                               "12 \xf0\x9f\x98\x80 t\xc3\xa9";
    if (vf_tokenizer_encode(t, text, sizeof(text) - 1, true, &ids, &count, &err) == VF_OK) {
        char *back;
        size_t n_back;
        if (vf_tokenizer_decode(t, ids, count, false, &back, &n_back, &err) == VF_OK)
            free(back);
        free(ids);
    }
    vf_tokenizer_destroy(t);
    return true;
}

static void check_truncated(const char *json, size_t n)
{
    int bad = 0, loaded = 0, count = 0;
    for (size_t len = 0; len < n - 1; len += 1 + n / 150, count++)
        bad += !survives(json, len, &loaded);
    ok(bad == 0 && loaded == 0, "cut short at %d places: %d bad, %d load", count, bad, loaded);
}

static void check_flipped(const char *json, size_t n)
{
    enum { CASES = 1500 };
    uint64_t rng = 4242;
    int bad = 0, loaded = 0;
    char *copy = malloc(n);
    for (int c = 0; c < CASES; c++) {
        memcpy(copy, json, n);
        for (uint32_t k = 1 + random_below(&rng, 3); k > 0; k--)
            copy[random_below(&rng, (uint32_t)n)] = (char)random_u64(&rng);
        bad += !survives(copy, n, &loaded);
    }
    free(copy);
    note("%d of %d still load", loaded, CASES);
    ok(bad == 0 && loaded < CASES, "random bytes changed: %d bad", bad);
}

/* Every value of the file, but only the first few of each long list, replaced by values of other
 * types. */
struct sweep {
    json_t *root;
    int bad, loaded, count;
};

static void sweep_value(struct sweep *s, json_t *parent, const char *key, size_t index)
{
    static const char *const values[] = {"null", "true",         "-1", "70000", "1e300",
                                         "\"\"", "\"Sequence\"", "[]", "{}",    "[[]]"};
    json_t *old = key ? json_object_get(parent, key) : json_array_get(parent, index);
    json_incref(old);
    for (size_t i = 0; i < VF_ARRAY_LEN(values); i++) {
        json_t *v = json_loads(values[i], JSON_DECODE_ANY, NULL);
        if (key)
            json_object_set_new(parent, key, v);
        else
            json_array_set_new(parent, index, v);
        char *text = json_dumps(s->root, JSON_COMPACT);
        s->bad += !survives(text, strlen(text), &s->loaded);
        s->count++;
        free(text);
    }
    if (key)
        json_object_set_new(parent, key, old);
    else
        json_array_set_new(parent, index, old);
}

static void sweep_under(struct sweep *s, json_t *at)
{
    enum { FIRST = 3 };
    const char *key;
    json_t *v;
    if (json_is_object(at)) {
        const char *keys[16];
        size_t count = 0;
        json_object_foreach(at, key, v) if (count < VF_ARRAY_LEN(keys) &&
                                            (count < FIRST || json_object_size(at) < 100))
            keys[count++] = key;
        for (size_t i = 0; i < count; i++) {
            sweep_value(s, at, keys[i], 0);
            sweep_under(s, json_object_get(at, keys[i]));
        }
    }
    for (size_t i = 0; i < json_array_size(at) && i < FIRST; i++) {
        sweep_value(s, at, NULL, i);
        sweep_under(s, json_array_get(at, i));
    }
}

static void check_texts(const char *json, size_t n)
{
    static const struct {
        const char *what, *text;
    } raw[] = {
        {"empty file", ""},
        {"not JSON", "tokenizer"},
        {"a comment", "{} // no"},
        {"a duplicate key", "{\"model\":{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}"},
        {"broken UTF-8", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"\xc3\":0},\"merges\":[]}}"},
        {"a lone surrogate", "{\"model\":{\"vocab\":{\"\\ud800\":0},\"merges\":[]}}"},
        {"a huge number", "{\"model\":{\"vocab\":{\"a\":99999999999999999999},\"merges\":[]}}"},
    };
    for (size_t i = 0; i < VF_ARRAY_LEN(raw); i++) {
        struct vf_err err = {0};
        struct vf_tokenizer *t = NULL;
        enum vf_code code = vf_tokenizer_create(raw[i].text, strlen(raw[i].text), WHERE, &t, &err);
        ok(code == C && is_sentence(err.text) && !t, "%s", raw[i].what);
        note("%s", err.text);
        vf_tokenizer_destroy(t);
    }
    int loaded = 0;
    size_t depth = 100000;
    char *deep = malloc(depth);
    memset(deep, '[', depth);
    ok(survives(deep, depth, &loaded) && loaded == 0, "deep nesting");
    free(deep);
    ok(survives(json, n, &loaded) && loaded == 1, "the good file itself loads");
    vf_tokenizer_destroy(NULL);
}

int main(void)
{
    size_t n;
    char *json = tokenizer_file("stories260k", "tokenizer.json", &n);
    plan(EDIT_COUNT + 9 + 2 + 1);
    if (!json)
        return 1;
    json_t *good = json_loadb(json, n, 0, NULL);
    for (int i = 0; i < EDIT_COUNT; i++)
        check_edit(good, &edits[i]);
    check_texts(json, n);
    check_truncated(json, n);
    check_flipped(json, n);
    struct sweep s = {.root = json_deep_copy(good)};
    sweep_under(&s, s.root);
    note("%d of %d still load", s.loaded, s.count);
    ok(s.bad == 0 && s.count > 500, "other types everywhere: %d of %d bad", s.bad, s.count);
    json_decref(s.root);
    json_decref(good);
    free(json);
    return 0;
}
