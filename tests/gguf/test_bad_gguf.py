"""Broken GGUF files through vflow-convert: cut, with bits flipped, with absurd numbers, with keys
missing, and good files that say something which isn't supported.

Every case must end with exit status 3 and exactly one line on stderr that names the file (and what
the case asks for), and leave the output's directory as it was.
"""
import os
import random
import struct
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap

import gguf_file as gguf

CONVERT = tap.program("vflow-convert")
RANDOM = random.Random(20261130)
U32, I32, F32, BOOL, STRING, ARRAY = (gguf.U32, gguf.I32, gguf.F32, gguf.BOOL, gguf.STRING,
                                      gguf.ARRAY)
T = "tokenizer.ggml."


class Case:
    """A good file, and ways to write it changed."""

    def __init__(self, folder, **options):
        self.path = os.path.join(folder, "in", "model.gguf")
        self.out = os.path.join(folder, "out")
        for name in ("in", "out"):
            os.makedirs(os.path.join(folder, name), exist_ok=True)
        model = gguf.Model(**dict(dict(arch="llama", layers=1, d=32, heads=2, kv=1, ffn=32,
                                       vocab=48), **options))
        self.metadata = model.metadata + self.tokenizer()
        self.tensors = model.tensors(lambda name: "Q4_0")

    @staticmethod
    def tokenizer():
        words = ["<unk>", "<s>", "</s>", "a", "b", "ab", "aba"]
        return [(T + "model", STRING, "llama"), (T + "tokens", ARRAY, (STRING, words)),
                (T + "scores", ARRAY, (F32, [0.0, 0, 0, 0, 0, -1, -2])),
                (T + "token_type", ARRAY, (I32, [2, 3, 3, 1, 1, 1, 1]))]

    def run(self, data, *options):
        with open(self.path, "wb") as file:
            file.write(data)
        return subprocess.run([CONVERT, self.path, "-o", os.path.join(self.out, "m.vflow"),
                               *options], capture_output=True, timeout=60)

    def check(self, label, data, mention="", options=(), may_be_good=False):
        p = self.run(bytes(data), *options)
        text = p.stderr.decode("utf-8", "replace")
        lines = text.splitlines()
        if may_be_good and p.returncode == 0 and not text:
            os.remove(os.path.join(self.out, "m.vflow"))
            return
        good = (p.returncode == 3 and len(lines) == 1 and "model.gguf" in text and mention in text
                and os.listdir(self.out) == [])
        if not tap.ok(good, "%s: %s" % (label, text.strip().replace(self.path, "model.gguf"))):
            tap.note("status %d, wanted: %s" % (p.returncode, mention))
            for name in os.listdir(self.out):
                os.remove(os.path.join(self.out, name))

    def good(self, label, metadata=None, tensors=None):
        p = self.run(gguf.build(metadata or self.metadata, tensors or self.tensors).data)
        tap.ok(p.returncode == 0 and not p.stderr, label + p.stderr.decode())
        if p.returncode == 0:
            os.remove(os.path.join(self.out, "m.vflow"))

    def with_key(self, key, kind, value):
        """The metadata with one key set (kind None: removed)."""
        rest = [m for m in self.metadata if m[0] != key]
        return rest if kind is None else rest + [(key, kind, value)]

    def key(self, key, kind, value, mention=None):
        label = "%s = %r" % (key, value) if kind is not None else key + " missing"
        self.check(label[:90], gguf.build(self.with_key(key, kind, value), self.tensors).data,
                   key if mention is None else mention)

    def with_tensor(self, name, entry):
        """The tensors with one replaced (None: removed) or, under a new name, added."""
        rest = [entry if t[0] == name else t for t in self.tensors]
        if entry is not None and not any(t[0] == name for t in self.tensors):
            rest.append(entry)
        return [t for t in rest if t is not None]

    def tensor(self, label, name, entry, mention=None):
        self.check(label, gguf.build(self.metadata, self.with_tensor(name, entry)).data,
                   name if mention is None else mention)


def cuts_and_flips(c):
    built = gguf.build(c.metadata, c.tensors)
    good, header = bytes(built.data), built.at["header_end"]
    for cut in (0, 1, 3, 4, 7, 8, 15, 16, 23, 24, 30, header // 3, header // 2, header - 1, header,
                built.at["data"] - 1, built.at["data"], len(good) // 2, len(good) - 64):
        c.check("cut at byte %d of %d" % (cut, len(good)), good[:cut])
    for _ in range(150):
        at, bit = RANDOM.randrange(header), RANDOM.randrange(8)
        bad = bytearray(good)
        bad[at] ^= 1 << bit
        # Some bits (of a score, of a key that means nothing here) leave a good file.
        c.check("bit %d of byte %d flipped" % (bit, at), bad, may_be_good=True)
    for _ in range(60):
        bad = bytearray(good)
        for _ in range(8):
            bad[RANDOM.randrange(header)] = RANDOM.randrange(256)
        c.check("eight random bytes", bad, may_be_good=True)


def header_fields(c):
    def patched(field, data, more=0):
        built = gguf.build(c.metadata, c.tensors)
        at = built.at[field] + more
        built.data[at:at + len(data)] = data
        return built.data

    c.check("another magic", patched("magic", b"GGUX"), "must begin with GGUF")
    for version in (0, 1, 4, 2 ** 24 * 3, 2 ** 32 - 1):
        c.check("version %d" % version, patched("version", struct.pack("<I", version)), "version")
    for field in ("tensor_count", "key_count"):
        for count in (2 ** 20, 2 ** 32, 2 ** 63, 2 ** 64 - 1, 1000):
            c.check("%s %d" % (field, count), patched(field, struct.pack("<Q", count)))
    c.check("a tensor fewer", patched("tensor_count", struct.pack("<Q", len(c.tensors) - 1)))
    name, key = "blk.0.attn_q.weight", "llama.block_count"
    for kind in (13, 255, 2 ** 32 - 1):
        c.check("value type %d" % kind, patched("type " + key, struct.pack("<I", kind)), key)
    for length in (0, 2 ** 16, 2 ** 32, 2 ** 63, 2 ** 64 - 1):
        c.check("key length %d" % length, patched("key " + key, struct.pack("<Q", length)))
        c.check("tensor name length %d" % length, patched("name " + name,
                                                          struct.pack("<Q", length)))
        c.check("string length %d" % length, patched("value general.architecture",
                                                     struct.pack("<Q", length)))
    tokens = "value " + T + "tokens"
    for count in (2 ** 20, 2 ** 32, 2 ** 61, 2 ** 63, 2 ** 64 - 1):
        c.check("array of %d strings" % count, patched(tokens, struct.pack("<Q", count), 4),
                T + "tokens")
        c.check("array of %d floats" % count, patched("value " + T + "scores",
                                                      struct.pack("<Q", count), 4), T + "scores")
    for kind in (9, 13, 2 ** 31):
        c.check("array of type %d" % kind, patched(tokens, struct.pack("<I", kind)), T + "tokens")
    for rank in (0, 5, 2 ** 32 - 1):
        c.check("rank %d" % rank, patched("rank " + name, struct.pack("<I", rank)), name)
    for size in (0, 31, 2 ** 32, 2 ** 62, 2 ** 63, 2 ** 64 - 32):
        for d in (0, 8):
            c.check("dimension %d is %d" % (d // 8, size),
                    patched("dims " + name, struct.pack("<Q", size), d), name)
    c.check("dimensions whose product overflows",
            patched("dims " + name, struct.pack("<QQ", 2 ** 33, 2 ** 33)), name)
    for offset in (1, 33, 2 ** 20, 2 ** 32, 2 ** 63, 2 ** 64 - 32):
        c.check("offset %d" % offset, patched("offset " + name, struct.pack("<Q", offset)), name)
    c.check("overlapping data", patched("offset " + name, struct.pack("<Q", 0)), "before those of")
    for kind in (3, 12, 14, 20, 24, 26, 99, 2 ** 32 - 1):
        c.check("tensor type %d" % kind, patched("ggml " + name, struct.pack("<I", kind)), name)
    c.check("type Q6_K by name", patched("ggml " + name, struct.pack("<I", 14)), "Q6_K")
    bad_utf8 = c.metadata + [(b"general.\xff", U32, 1)]
    c.check("a key that isn't UTF-8", gguf.build(bad_utf8, c.tensors).data, "UTF-8")
    c.check("a value that isn't UTF-8",
            gguf.build(c.metadata + [("general.x", STRING, b"a\xc3")], c.tensors).data, "UTF-8")
    c.check("a token that isn't UTF-8", gguf.build(
        c.with_key(T + "tokens", ARRAY, (STRING, [b"\xed\xa0\x80"] * 7)), c.tensors).data, "UTF-8")
    c.check("a key with a NUL", gguf.build(c.metadata + [(b"a\0b", U32, 1)], c.tensors).data, "NUL")
    c.check("an empty key", gguf.build(c.metadata + [("", U32, 1)], c.tensors).data, "empty")
    c.check("a key twice", gguf.build(c.metadata + c.metadata[:1], c.tensors).data, "twice")
    c.check("a tensor twice", gguf.build(c.metadata, c.tensors + c.tensors[:1]).data, "twice")
    c.check("a bool of 2", gguf.build(c.metadata + [("general.b", BOOL, 2)], c.tensors).data, "bool")
    c.check("a long tensor name", gguf.build(
        c.metadata, c.with_tensor("x", gguf.tensor("x" * 65, np.ones(32)))).data, "65")
    nested = (ARRAY, [])
    for _ in range(8):
        nested = (ARRAY, [nested])
    c.check("arrays nested too deep",
            gguf.build(c.metadata + [("general.n", ARRAY, nested)], c.tensors).data, "nested")
    for align in (0, 1, 4, 24, 33, 2 ** 31):
        c.key("general.alignment", U32, align)
    c.key("general.alignment", STRING, "32")


def metadata_values(c):
    for key in ("general.architecture", "llama.block_count", "llama.context_length",
                "llama.embedding_length", "llama.attention.head_count", "llama.feed_forward_length",
                "llama.attention.layer_norm_rms_epsilon"):
        c.key(key, None, None)
    for arch in ("gemma", "gpt2", "qwen2moe", "", "llama\x1b[31m"):
        c.key("general.architecture", STRING, arch, "general.architecture")
    c.key("general.architecture", U32, 1)
    c.key("general.type", STRING, "adapter")
    c.key("split.count", gguf.U16, 3)
    for key, most in (("block_count", 4096), ("embedding_length", 2 ** 20),
                      ("attention.head_count", 4096), ("feed_forward_length", 2 ** 22),
                      ("context_length", 2 ** 24)):
        c.key("llama." + key, U32, 0)
        c.key("llama." + key, U32, most + 1)
        c.key("llama." + key, gguf.I64, -1)
        c.key("llama." + key, F32, 1.0)
        c.key("llama." + key, ARRAY, (U32, [1]))
    c.key("llama.block_count", U32, 2, "blk.1.")
    c.key("llama.attention.head_count", U32, 3, "")
    c.key("llama.attention.head_count_kv", U32, 5, "")
    c.key("llama.attention.key_length", U32, 15, "")
    c.key("llama.attention.value_length", U32, 8)
    c.key("llama.rope.dimension_count", U32, 8)
    c.key("llama.embedding_length", U32, 64, "")
    for eps in (0.0, -1e-5, float("nan"), float("inf"), 2.0):
        c.key("llama.attention.layer_norm_rms_epsilon", F32, eps)
    for theta in (0.0, -1.0, float("nan"), float("inf")):
        c.key("llama.rope.freq_base", F32, theta)
    for kind in ("yarn", "longrope", "linear\n"):
        c.key("llama.rope.scaling.type", STRING, kind)
    c.key("llama.rope.scaling.factor", F32, 4.0)
    c.key("llama.rope.scale_linear", F32, 2.0)
    c.check("linear scaling by 8", gguf.build(
        c.metadata + [("llama.rope.scaling.type", STRING, "linear"),
                      ("llama.rope.scaling.factor", F32, 8.0)], c.tensors).data, "linear")
    c.key("llama.rope.scaling.yarn_log_multiplier", F32, 0.1)
    c.key("llama.attention.sliding_window", U32, 16)
    c.key("llama.attention.causal", BOOL, 0)
    c.key("llama.attention.scale", F32, 0.5)
    c.key("llama.logit_scale", F32, 0.5)
    c.key("llama.vocab_size", U32, 47)
    c.key("llama.expert_count", U32, 70000)
    c.key("llama.expert_count", U32, 4, "expert_used_count")
    c.tensor("rotary frequencies", "rope_freqs.weight", gguf.tensor("rope_freqs.weight",
                                                                    np.ones(8)))


def tensors(c):
    for name in ("token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight",
                 "blk.0.ffn_down.weight", "blk.0.attn_norm.weight"):
        c.tensor(name + " missing", name, None)
    rng = np.random.default_rng(3)
    q = "blk.0.attn_q.weight"
    for shape in ((32, 64), (64, 32), (1024,), (2, 16, 32), (1, 1, 32, 32)):
        c.tensor("attn_q of shape %s" % (shape,), q, gguf.tensor(q, rng.standard_normal(shape)))
    c.tensor("a norm of another size", "output_norm.weight",
             gguf.tensor("output_norm.weight", np.ones(64)))
    c.tensor("a tensor more", "blk.0.attn_q.bias", gguf.tensor("blk.0.attn_q.bias", np.ones(32)))
    c.tensor("a layer more", "blk.1.attn_norm.weight",
             gguf.tensor("blk.1.attn_norm.weight", np.ones(32)))
    c.tensor("rows that no Q4_0 block fits", q, (q, "Q4_0", [30, 32], b"\0" * 540), "multiple of 32")
    for value, word in ((np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")):
        w = rng.standard_normal((32, 32)).astype(np.float32)
        w[3, 7] = value
        for kind in ("F32", "F16", "BF16"):
            c.tensor("%s in %s" % (word, kind), q, gguf.tensor(q, w, kind), word)
    norm = np.ones(32, np.float32)
    norm[5] = np.nan
    c.tensor("NaN in a norm", "output_norm.weight", gguf.tensor("output_norm.weight", norm), "NaN")
    for kind, size in (("Q4_0", 18), ("Q8_0", 34)):
        for scale, word in ((0x7C00, "infinity"), (0xFC00, "infinity"), (0x7E01, "NaN")):
            data = bytearray(32 * size)
            struct.pack_into("<H", data, 9 * size, scale)
            name = "blk.0.ffn_up.weight"
            c.tensor("a %s scale that is %s" % (kind, word), name,
                     (name, kind, [32, 32], bytes(data)), "row 9, columns 0 to 31")
    for wish in ("q8", "f16", "f32"):
        c.check("--quant %s for Q4_0" % wish, gguf.build(c.metadata, c.tensors).data, "--quant",
                ("--quant", wish))


def tokenizers(c):
    def spm(label, changes, mention):
        changed = dict((key, (key, kind, v)) for key, kind, v in c.metadata)
        for key, kind, v in changes:
            changed[T + key] = (T + key, kind, v)
        entries = [e for e in changed.values() if e[1] is not None]
        c.check(label, gguf.build(entries, c.tensors).data, mention)

    words = ["<unk>", "<s>", "</s>", "a", "b", "ab", "aba"]
    spm("a tokenizer of kind bert", [("model", STRING, "bert")], T + "model")
    spm("a tokenizer model that is a number", [("model", U32, 1)], T + "model")
    spm("no tokens", [("tokens", None, None)], T + "tokens")
    spm("no token", [("tokens", ARRAY, (STRING, []))], T + "tokens")
    spm("tokens that are numbers", [("tokens", ARRAY, (U32, [1, 2]))], T + "tokens")
    spm("more tokens than rows", [("tokens", ARRAY, (STRING, ["t%d" % i for i in range(49)]))],
        T + "tokens")
    spm("a token twice", [("tokens", ARRAY, (STRING, words[:6] + ["a"]))], "both")
    spm("a token with a NUL", [("tokens", ARRAY, (STRING, words[:6] + ["a\0"]))], "NUL")
    spm("a token of 600 bytes", [("tokens", ARRAY, (STRING, words[:6] + ["x" * 600]))], "600")
    spm("an empty control token", [("tokens", ARRAY, (STRING, ["<unk>", ""] + words[2:]))], "0 bytes")
    spm("no scores", [("scores", None, None)], T + "scores")
    spm("too few scores", [("scores", ARRAY, (F32, [0.0] * 6))], T + "scores")
    spm("a score that is NaN", [("scores", ARRAY, (F32, [0.0] * 6 + [float("nan")]))], T + "scores")
    spm("scores that are integers", [("scores", ARRAY, (I32, [0] * 7))], T + "scores")
    spm("too many token types", [("token_type", ARRAY, (I32, [1] * 8))], T + "token_type")
    spm("a token type of 7", [("token_type", ARRAY, (I32, [1] * 6 + [7]))], T + "token_type")
    spm("token types that are strings", [("token_type", ARRAY, (STRING, ["1"] * 7))],
        T + "token_type")
    spm("bos beyond the tokens", [("bos_token_id", U32, 7)], T + "bos_token_id")
    spm("eos beyond the vocabulary", [("eos_token_id", U32, 48)], T + "eos_token_id")
    spm("add_bos_token that is a number", [("add_bos_token", U32, 1)], T + "add_bos_token")
    one = [("tokens", ARRAY, (STRING, ["a"])), ("scores", ARRAY, (F32, [0.0])),
           ("token_type", ARRAY, (I32, [1]))]
    spm("no bos token to add", one, T + "bos_token_id")
    gpt = [("model", STRING, "gpt2"), ("pre", STRING, "gpt-2"), ("scores", None, None),
           ("merges", ARRAY, (STRING, ["a b", "ab a"]))]
    c.good("a little gpt2 vocabulary is good", [m for m in c.metadata if m[0] != T + "scores"]
           and [m for m in c.metadata if not m[0].startswith(T)]
           + [(T + k, t, v) for k, t, v in gpt if t is not None]
           + [(T + "tokens", ARRAY, (STRING, words))])
    spm("no pre-tokenizer", gpt[:1] + gpt[2:], T + "pre")
    spm("an unknown pre-tokenizer", [*gpt, ("pre", STRING, "deepseek-llm")], "deepseek-llm")
    spm("no merges", gpt[:3], T + "merges")
    for merge in ("ab", "a  b", " ab", "ab ", "", "a b a", "a x", "b b", "b a"):
        spm("the merge \"%s\"" % merge, [*gpt[:3], ("merges", ARRAY, (STRING, [merge]))],
            T + "merges")


def experts(folder):
    c = Case(folder, arch="qwen3moe", experts=3, hd=16, layers=2)
    c.good("the good file with experts converts")
    p = "qwen3moe."
    c.key(p + "expert_count", None, None)
    c.key(p + "expert_count", U32, 0)
    c.key(p + "expert_count", U32, 4, "ffn_gate_inp")
    c.key(p + "expert_used_count", U32, 0)
    c.key(p + "expert_used_count", U32, 4, "")
    c.key(p + "expert_feed_forward_length", None, None)
    c.key(p + "expert_feed_forward_length", U32, 64, "_exps")
    c.key(p + "expert_gating_func", U32, 2)
    c.key(p + "expert_weights_norm", BOOL, 0)
    c.key(p + "expert_weights_scale", F32, 2.5)
    c.key(p + "expert_shared_count", U32, 1)
    c.key(p + "leading_dense_block_count", U32, 1)
    name = "blk.1.ffn_up_exps.weight"
    w = np.random.default_rng(2).standard_normal((3, 32, 32))
    c.tensor("experts of another type in another layer", name, gguf.tensor(name, w, "Q8_0"))
    c.tensor("experts of two dimensions", name, gguf.tensor(name, w[0], "Q4_0"))
    c.tensor("experts missing", name, None)
    c.tensor("a shared expert", "blk.0.ffn_up_shexp.weight",
             gguf.tensor("blk.0.ffn_up_shexp.weight", w[0]))


def main():
    with tempfile.TemporaryDirectory() as folder:
        c = Case(folder)
        c.good("the good file converts")
        cuts_and_flips(c)
        header_fields(c)
        metadata_values(c)
        tensors(c)
        tokenizers(c)
        experts(os.path.join(folder, "experts"))
        c.good("the good file still converts")
        missing = subprocess.run([CONVERT, os.path.join(folder, "none.gguf"), "-o",
                                  os.path.join(folder, "m.vflow")], capture_output=True, timeout=60)
        tap.ok(missing.returncode == 3 and len(missing.stderr.splitlines()) == 1, "no such file")
    tap.done()


main()
