"""vflow-convert on GGUF files: the same model from GGUF and from a checkpoint directory gives the
same bytes, quantised weights arrive without loss, tokenizers are token-exact, and vflow-bench
writes the same random weights in both formats.
"""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap
import vflow_reader as reader
from checkpoints import write_checkpoint

import gguf_file as gguf

CONVERT = tap.program("vflow-convert")
COORDINATOR = tap.program("vflow-coordinator")
BENCH = tap.program("vflow-bench")
INSPECT = tap.program("vflow-inspect")
SHARED = tap.shared_dir()

MODELS = {
    "llama": dict(arch="llama"),
    "llama tied": dict(arch="llama", tied=True, vocab=81),
    "llama with experts": dict(arch="llama", experts=4),
    "llama with a head size of its own": dict(arch="llama", hd=32, kv=1),
    "qwen2": dict(arch="qwen2", kv=4),
    "qwen3": dict(arch="qwen3", hd=32),
    "qwen3moe": dict(arch="qwen3moe", experts=5, hd=32),
    "olmoe": dict(arch="olmoe", experts=4, kv=4),
}


def run(*arguments):
    p = subprocess.run(arguments, capture_output=True, timeout=300)
    if p.returncode:
        tap.note("%s: %d %s" % (arguments, p.returncode, p.stderr.decode()))
    return p


def read(path):
    with open(path, "rb") as file:
        return file.read()


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)
    return path


def convert(source, output, *options):
    """The output's bytes, None when the conversion failed."""
    return read(output) if run(CONVERT, source, "-o", output, *options).returncode == 0 else None


def score(model, tokens, activations="f32"):
    out = model + ".npy"
    p = run(COORDINATOR, "score", "--model", model, "--tokens", ",".join(map(str, tokens)),
            "--activations", activations, "--threads", "1", "--logits", out)
    return np.load(out) if p.returncode == 0 else None


# ---- the same bytes as from a checkpoint directory ----

def test_architectures(folder):
    path = os.path.join
    for label, options in MODELS.items():
        model = gguf.Model(seed=len(label), **options)
        config, tensors = model.checkpoint()
        if options["arch"] == "qwen2":
            config["use_sliding_window"] = False
        write_checkpoint(path(folder, "dir"), config, tensors)
        for kind, quant in (("F32", "f32"), ("Q4_0", "q4"), ("Q8_0", "q8"), ("F16", "f16")):
            write(path(folder, "m.gguf"),
                  gguf.build(model.metadata, model.tensors(lambda name: kind)).data)
            a = convert(path(folder, "dir"), path(folder, "a.vflow"), "--quant", quant)
            b = convert(path(folder, "m.gguf"), path(folder, "b.vflow"))
            tap.ok(a and a == b, "%s, %s: the file of the checkpoint directory" % (label, kind))
        for quant, suffix in (("q4", "vflow"), ("q8", "cflow"), ("f16", "cflow")):
            write(path(folder, "m.gguf"), gguf.build(model.metadata, model.tensors()).data)
            a = convert(path(folder, "dir"), path(folder, "a." + suffix), "--quant", quant)
            b = convert(path(folder, "m.gguf"), path(folder, "b." + suffix), "--quant", quant)
            tap.ok(a and a == b, "%s, F32 with --quant %s to %s" % (label, quant, suffix))


def test_containers(folder):
    """What the format leaves open changes nothing."""
    model = gguf.Model("llama")
    path = os.path.join(folder, "m.gguf")
    tensors = model.tensors(lambda name: "Q4_0")

    def result(built):
        write(path, built.data)
        return convert(path, os.path.join(folder, "m.vflow"))

    first = result(gguf.build(model.metadata, tensors))
    tap.ok(first, "version 3")
    tap.ok(result(gguf.build(model.metadata, tensors, version=2)) == first, "version 2")
    tap.ok(result(gguf.build(model.metadata[::-1], tensors[::-1])) == first, "another order")
    aligned = model.metadata + [("general.alignment", gguf.U32, 1024)]
    tap.ok(result(gguf.build(aligned, tensors, align=1024)) == first, "alignment 1024")
    at, spaced = 0, {}
    for name, _, _, data in tensors:
        spaced[name] = at
        at += -(-len(data) // 32) * 32 + 96
    tap.ok(result(gguf.build(model.metadata, tensors, offsets=spaced)) == first, "holes")
    wide = [(k, {gguf.U32: gguf.I64, gguf.F32: gguf.F64}.get(t, t),
             float(np.float32(v)) if t == gguf.F32 else v) for k, t, v in model.metadata]
    tap.ok(result(gguf.build(wide, tensors)) == first, "wider types of numbers")
    scalars = {gguf.BOOL: 1, gguf.F32: 1.5, gguf.F64: -2.5}
    more = [("general.x%d" % t, t, scalars.get(t, 100)) for t in gguf.SCALARS]
    more += [("general.a%d" % t, gguf.ARRAY, (t, [scalars.get(t, 100)] * 3)) for t in gguf.SCALARS]
    more += [("general.s", gguf.STRING, "żółw"), ("general.e", gguf.ARRAY, (gguf.U32, [])),
             ("general.strings", gguf.ARRAY, (gguf.STRING, ["", "a", "ü" * 3000])),
             ("general.nested", gguf.ARRAY,
              (gguf.ARRAY, [(gguf.STRING, ["x"]), (gguf.U8, [1, 2, 3]), (gguf.ARRAY, [])]))]
    tap.ok(result(gguf.build(model.metadata + more, tensors)) == first, "every type of value")
    tap.ok(result(gguf.build(model.metadata + [("llama.rope.scaling.type", gguf.STRING, "linear"),
                                               ("llama.rope.scaling.factor", gguf.F32, 1.0),
                                               ("llama.attention.sliding_window", gguf.U32, 64)],
                             tensors)) == first, "scaling by 1, a window as wide as the context")


# ---- no loss, mixed types ----

def part_weights(file, layer, expert):
    """{part: weights} of an expert's record."""
    record, out = file.expert(layer, expert), {}
    for (name, at, rows, cols), quant in zip(file.expert_parts()[0], file.expert_quants):
        size = reader.matrix_bytes(quant, rows, cols)
        out[name] = reader.unpack_matrix(record[at:at + size], rows, cols, quant)
    return out


OURS = {"token_embd": "embed", "output": "head", "attn_q": "q", "attn_k": "k", "attn_v": "v",
        "attn_output": "o", "ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down"}
QUANT_OF = {"F32": 0, "F16": 1, "BF16": 0, "Q8_0": 2, "Q4_0": 3}


def check_exact(label, output, model, expected, kind_of):
    """Every matrix of the output is exactly what the GGUF's bytes stand for, in its own type."""
    file, wrong = reader.ModelFile(output), []
    for name, w in expected.items():
        parts = name.split(".")
        if w.ndim == 1 or "gate_inp" in name:
            continue
        layer = int(parts[1]) if parts[0] == "blk" else None
        own = parts[2] if parts[0] == "blk" else parts[0]
        quant = QUANT_OF[kind_of(name)]
        if own.endswith("_exps"):
            part = own[4:-5]
            got = [part_weights(file, layer, e)[part] for e in range(model.experts)]
            same = file.expert_quants[["gate", "up", "down"].index(part)] == quant
        else:
            t = file.by_key[OURS[own], layer, 0]
            got, same = file.weights(t), t.quant == quant
        if not same or not np.array_equal(np.asarray(got), w):
            wrong.append(name)
    tap.ok(not wrong, "%s: each matrix is exact in its own type%s" % (label, wrong or ""))


def exact_tensors(model, kind_of, signed):
    """(tensors, {name: what they stand for in our row order})."""
    tensors, expected = [], {}
    for name, kind, dims, data in model.tensors(kind_of):
        w = model.file_order(name, model.weights[name])
        if kind == "Q4_0" and signed:
            data = gguf.q4_blocks(w, signed=True)
        tensors.append((name, kind, dims, data))
        there = gguf.dequantise(kind, data, w.shape)
        order = np.argsort(model.file_order(name, np.arange(w.shape[0])))
        expected[name] = there[order] if there.ndim == 2 else there
    return tensors, expected


def test_exact(folder):
    source, output = os.path.join(folder, "m.gguf"), os.path.join(folder, "m.vflow")
    for label, options in (("llama", dict(arch="llama", hd=32, kv=2)),
                           ("qwen3moe", dict(arch="qwen3moe", experts=3, hd=32))):
        model = gguf.Model(seed=77, **options)
        for kind in ("Q4_0", "Q8_0", "F16", "BF16", "F32"):
            tensors, expected = exact_tensors(model, lambda name: kind, True)
            write(source, gguf.build(model.metadata, tensors).data)
            convert(source, output)
            check_exact("%s, %s" % (label, kind), output, model, expected, lambda name: kind)


def test_extremes(folder):
    """Scales and codes that no quantiser writes: negative, tiny and huge scales, int8 -128."""
    model = gguf.Model("llama", layers=1, vocab=64)
    rng = np.random.default_rng(5)
    source, output = os.path.join(folder, "m.gguf"), os.path.join(folder, "m.vflow")
    for kind, size in (("Q4_0", 18), ("Q8_0", 34)):
        tensors, expected = [], {}
        for name, _, dims, data in model.tensors(lambda name: kind):
            w = model.weights[name]
            if w.ndim == 2:
                blocks = rng.integers(0, 256, (w.size // 32, size), dtype=np.uint8)
                blocks[:, 1] &= 0xBB  # exponents below infinity's; the sign may be set
                data = blocks.tobytes()
                there = gguf.dequantise(kind, data, w.shape)
                order = np.argsort(model.file_order(name, np.arange(w.shape[0])))
                expected[name] = there[order]
            tensors.append((name, kind if w.ndim == 2 else "F32", dims, data))
        write(source, gguf.build(model.metadata, tensors).data)
        convert(source, output)
        check_exact("random %s blocks" % kind, output, model, expected, lambda name: kind)


def test_mixed(folder):
    """Types mixed between tensors, and between an expert's three matrices."""
    kinds = {"token_embd": "F16", "output": "Q8_0", "attn_q": "Q8_0", "attn_k": "F32",
             "attn_v": "BF16", "attn_output": "Q4_0", "ffn_gate_exps": "Q8_0",
             "ffn_up_exps": "F16", "ffn_down_exps": "Q4_0", "ffn_gate": "F16", "ffn_up": "Q4_0",
             "ffn_down": "F32"}

    def kind_of(name):
        parts = name.split(".")
        return kinds[parts[2] if parts[0] == "blk" else parts[0]]

    source, output = os.path.join(folder, "m.gguf"), os.path.join(folder, "m.vflow")
    tokens = [3, 9, 27, 1, 60, 44, 2, 2, 70, 5]
    for label, options in (("dense", dict(arch="llama")),
                           ("experts", dict(arch="qwen3moe", experts=4, hd=32))):
        model = gguf.Model(seed=8, **options)
        tensors, expected = exact_tensors(model, kind_of, False)
        write(source, gguf.build(model.metadata, tensors).data)
        tap.ok(convert(source, output), "mixed, %s: converts" % label)
        check_exact("mixed, " + label, output, model, expected, kind_of)
        shown = run(INSPECT, output, "--json", "--verify")
        tap.ok(shown.returncode == 0 and json.loads(shown.stdout)["quant"] == "mixed",
               "mixed, %s: vflow-inspect verifies it and says so" % label)
        planned = json.loads(run(COORDINATOR, "plan", "--model", output, "--json", "--bandwidth",
                                 "10").stdout)
        want = sum(t["bytes"] for t in json.loads(shown.stdout)["tensors"]
                   if t["kind"] in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"))
        tap.ok(planned["quant"] == "mixed" and planned["bytes_per_token"]["attention"] == want > 0,
               "mixed, %s: plan counts each matrix in its own precision" % label)
        mixed = {activations: score(output, tokens, activations) for activations in ("f32", "q8")}
        # The same numbers as f32 everywhere: the engine has to agree with itself.
        plain = gguf.Model(seed=8, **options)
        plain.weights = {name: expected[name] if name in expected else w
                         for name, w in model.weights.items()}
        write(source, gguf.build(plain.metadata, plain.tensors()).data)
        convert(source, output)
        exact = score(output, tokens)
        for activations, allowed in (("f32", 1e-4), ("q8", 0.2)):
            gap = np.abs(mixed[activations] - exact).max()
            tap.ok(gap < allowed, "mixed, %s: scores with %s activations differ by %.2g from those "
                   "of f32 matrices" % (label, activations, gap))
        wish = run(CONVERT, source, "-o", output, "--quant", "q8")
        tap.ok(wish.returncode == 0 and b"q8" in wish.stdout, "mixed, %s: f32 with --quant q8" % label)


# ---- a trained model ----

def stories(kinds):
    """stories260k as GGUF: (metadata, tensors); its tokenizer comes along."""
    folder = os.path.join(SHARED, "models", "stories260k")
    with open(os.path.join(folder, "config.json")) as file:
        c = json.load(file)
    raw = read(os.path.join(folder, "model.safetensors"))
    n = int.from_bytes(raw[:8], "little")
    entries, data = json.loads(raw[8:8 + n]), raw[8 + n:]
    model = gguf.Model("llama", d=c["hidden_size"], layers=c["num_hidden_layers"],
                       heads=c["num_attention_heads"], kv=c["num_key_value_heads"],
                       ffn=c["intermediate_size"], vocab=c["vocab_size"], tied=True,
                       context=c["max_position_embeddings"])
    for name in model.weights:
        (theirs, _), = gguf.checkpoint_tensors("llama", name, None)
        e = entries[theirs]
        kind = {"F32": "F32", "F16": "F16", "BF16": "BF16"}[e["dtype"]]
        begin, end = e["data_offsets"]
        model.weights[name] = gguf.dequantise(kind, data[begin:end], e["shape"])
    # Q4_0 has no rows of 172 weights: those go as f32, with the numbers that Q4 gives them.
    def kind_of(name):
        return kinds if model.weights[name].shape[-1] % 32 == 0 else "F32"
    if kinds == "Q4_0":
        for name, w in model.weights.items():
            if w.ndim == 2 and w.shape[1] % 32:
                padded = np.zeros((w.shape[0], -(-w.shape[1] // 32) * 32), np.float32)
                padded[:, :w.shape[1]] = w
                exact = gguf.dequantise("Q4_0", gguf.q4_blocks(padded), padded.shape)
                model.weights[name] = exact[:, :w.shape[1]]
    metadata = model.metadata + spm_metadata(os.path.join(SHARED, "tokenizers", "stories260k",
                                                          "tokenizer.json"))
    return metadata, model.tensors(kind_of)


def test_stories(folder):
    golden = os.path.join(SHARED, "models", "stories260k")
    with open(os.path.join(golden, "golden.json")) as file:
        tokens = json.load(file)["tokens"]
    source, output = os.path.join(folder, "s.gguf"), os.path.join(folder, "s.vflow")
    for kinds, name, allowed in (("Q4_0", "logp_q4.npy", 1e-3), ("F32", "logp.npy", 1e-4)):
        write(source, gguf.build(*stories(kinds)).data)
        convert(source, output)
        got, want = score(output, tokens), np.load(os.path.join(golden, name))
        gap = np.abs(got - want).max()
        tap.ok(got.shape == want.shape and gap <= allowed,
               "stories260k as %s: log-probabilities differ by at most %.2g" % (kinds, gap))
        tap.ok(np.array_equal(got.argmax(axis=1), want.argmax(axis=1)),
               "stories260k as %s: the same best token everywhere" % kinds)
    story = run(COORDINATOR, "generate", "--model", output, "-p", "Once upon a time", "--max-tokens",
                "20", "--temperature", "0")
    tap.ok(story.returncode == 0 and len(story.stdout.split()) > 8, "its tokenizer drives it: %s"
           % story.stdout.decode("utf-8", "replace").strip().replace("\n", " "))


# ---- tokenizers ----

def spm_metadata(path):
    """A tokenizer.json of the Llama-2 kind as scores: the sooner a piece merges, the higher."""
    with open(path) as file:
        t = json.load(file)
    vocab = sorted(t["model"]["vocab"], key=t["model"]["vocab"].get)
    first = {}
    for rank, merge in enumerate(t["model"]["merges"]):
        whole = "".join(merge if isinstance(merge, list) else merge.split(" "))
        first.setdefault(whole, rank)
    added = {a["id"]: a for a in t["added_tokens"]}
    kinds = [2 if s == "<unk>" else 3 if i in added else 6 if s.startswith("<0x") else 1
             for i, s in enumerate(vocab)]
    scores = [-float(first.get(s, 0)) if kind == 1 else 0.0 for s, kind in zip(vocab, kinds)]
    p = "tokenizer.ggml."
    return [(p + "model", gguf.STRING, "llama"), (p + "tokens", gguf.ARRAY, (gguf.STRING, vocab)),
            (p + "scores", gguf.ARRAY, (gguf.F32, scores)),
            (p + "token_type", gguf.ARRAY, (gguf.I32, kinds)),
            (p + "unknown_token_id", gguf.U32, 0), (p + "bos_token_id", gguf.U32, 1),
            (p + "eos_token_id", gguf.U32, 2)]


def bpe_metadata(path, pre):
    """A byte-level tokenizer.json as tokens and merges."""
    with open(path) as file:
        t = json.load(file)
    vocab = sorted(t["model"]["vocab"], key=t["model"]["vocab"].get)
    added = {a["id"] for a in t["added_tokens"]}
    merges = [m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]]
    end = next(iter(added))
    p = "tokenizer.ggml."
    adds = t["post_processor"]["type"] == "TemplateProcessing"
    return [(p + "model", gguf.STRING, "gpt2"), (p + "pre", gguf.STRING, pre),
            (p + "tokens", gguf.ARRAY, (gguf.STRING, vocab)),
            (p + "token_type", gguf.ARRAY, (gguf.I32, [3 if i in added else 1
                                                       for i in range(len(vocab))])),
            (p + "merges", gguf.ARRAY, (gguf.STRING, merges)),
            (p + "bos_token_id", gguf.U32, end), (p + "eos_token_id", gguf.U32, end),
            (p + "add_bos_token", gguf.BOOL, adds)]


def embedded(folder, metadata, vocab):
    """The tokenizer.json that a little model with these metadata is given."""
    model = gguf.Model("llama", layers=1, d=32, heads=2, kv=1, ffn=32, vocab=vocab)
    source, output = os.path.join(folder, "t.gguf"), os.path.join(folder, "t.vflow")
    write(source, gguf.build(model.metadata + metadata, model.tensors(lambda n: "Q4_0")).data)
    return reader.ModelFile(output).tokenizer if convert(source, output) else None


def merge_groups(merges):
    """[(whole, {pairs of parts})]: the order of a token's own pairs says nothing."""
    groups = []
    for merge in merges:
        pair = tuple(merge) if isinstance(merge, list) else tuple(merge.split(" "))
        if not groups or groups[-1][0] != "".join(pair):
            groups.append(("".join(pair), set()))
        groups[-1][1].add(pair)
    return groups


def test_tokenizers(folder):
    check = os.path.join(os.environ["VFLOW_BIN"], "..", "tests", "gguf_check_tokenizer")
    for name, vocab in (("stories260k", 512), ("gpt2", 50257), ("tinystories2k", 2048)):
        path = os.path.join(SHARED, "tokenizers", name, "tokenizer.json")
        if name == "gpt2" and not os.path.isfile(path):
            tap.note("the small set of test data has no gpt2 tokenizer")
            continue
        metadata = spm_metadata(path) if name == "stories260k" else bpe_metadata(path, "gpt-2")
        text = embedded(folder, metadata, vocab)
        made = write(os.path.join(folder, name + ".json"), text)
        p = run(check, made, os.path.join(SHARED, "tokenizers", name, "cases.jsonl"), name)
        for line in p.stdout.decode().splitlines():
            if line.startswith("#"):
                tap.note(line)
            elif not line.startswith("1.."):
                tap.ok(line.startswith("ok "), line.split(" - ", 1)[1])
        with open(path) as file:
            want = json.load(file)
        got = json.loads(text)
        orders = [merge_groups(t["model"]["merges"]) for t in (got, want)]
        tap.ok(orders[0] == orders[1], "%s: merges in the original's order" % name)
        tap.ok(got["model"]["vocab"] == want["model"]["vocab"], "%s: the same vocabulary" % name)


def test_pre_tokenizers(folder):
    """Each known name of tokenizer.ggml.pre gives a tokenizer that loads and returns the text."""
    path = os.path.join(SHARED, "tokenizers", "tinystories2k", "tokenizer.json")
    check = os.path.join(os.environ["VFLOW_BIN"], "..", "tests", "gguf_check_tokenizer")
    cases = os.path.join(folder, "pre.jsonl")
    for name in ("gpt-2", "phi-2", "olmo", "llama-bpe", "llama3", "llama-v3", "dbrx", "smaug-bpe",
                 "qwen2", "deepseek-r1-qwen", "tekken", "starcoder", "smollm", "default"):
        text = embedded(folder, bpe_metadata(path, name), 2048)
        made = write(os.path.join(folder, "pre.json"), text or b"{}")
        with open(cases, "w") as file:
            json.dump({"text": "", "ids": [], "ids_with_special": [0], "decoded": ""}, file)
            file.write("\n")
        p = run(check, made, cases, name)
        tap.ok(p.returncode == 0, "pre-tokenizer %s" % name)


# ---- both forms of a random model ----

def test_make_model(folder):
    base = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                intermediate_size=96, vocab_size=300, hidden_act="silu",
                max_position_embeddings=64, rms_norm_eps=1e-5)
    moe = dict(base, num_experts=6, num_experts_per_tok=2)
    cases = [
        ("native dense", dict(base, model_type="pipeline_native"), []),
        ("llama, tied", dict(base, model_type="llama", tie_word_embeddings=True), []),
        ("mixtral", dict(moe, model_type="mixtral"), []),
        ("olmoe", dict(moe, model_type="olmoe", num_key_value_heads=4), []),
        ("olmoe's sizes as qwen3moe", dict(moe, model_type="olmoe", num_key_value_heads=4),
         ["--arch", "qwen3moe"]),
        ("qwen3_moe", dict(moe, model_type="qwen3_moe", head_dim=32, moe_intermediate_size=32,
                           norm_topk_prob=True), []),
        ("dense as qwen2", dict(base, model_type="pipeline_native"), ["--arch", "qwen2"]),
        ("dense as qwen3", dict(base, model_type="llama"), ["--arch", "qwen3"]),
        ("a vocabulary without bytes", dict(base, model_type="llama", vocab_size=90), []),
    ]
    config, path = os.path.join(folder, "config.json"), os.path.join
    tokens = [3, 80, 12, 7, 7, 55, 31, 0, 64]
    for label, content, options in cases:
        with open(config, "w") as file:
            json.dump(content, file)
        make = [BENCH, "make-model", "--config", config, "--seed", "9", *options]
        good = all(run(*make, *more).returncode == 0 for more in (
            ("-o", path(folder, "a.vflow")), ("--format", "gguf", "-o", path(folder, "m.gguf"))))
        good = good and convert(path(folder, "m.gguf"), path(folder, "b.vflow"))
        tap.ok(good, "%s: make-model writes both, the GGUF converts" % label)
        if not good:
            continue
        a, b = (reader.ModelFile(path(folder, n)) for n in ("a.vflow", "b.vflow"))
        tap.ok(all(a.bytes_of(a.by_key[k]) == b.bytes_of(b.by_key[k]) for k in a.by_key)
               and len(a.experts) == len(b.experts)
               and all(x[2] == y[2] for x, y in zip(a.experts, b.experts)),
               "%s: the same bytes in every tensor" % label)
        for activations in ("f32", "q8"):
            x, y = (score(path(folder, n), tokens, activations) for n in ("a.vflow", "b.vflow"))
            tap.ok(x is not None and x.tobytes() == y.tobytes() and np.isfinite(x).all(),
                   "%s: the same log-probabilities to the bit, %s" % (label, activations))
    refused = [
        (dict(base, model_type="pipeline_native", combine_style="async_experts"), [], 3),
        (dict(base, model_type="pipeline_native", hidden_act="gelu"), [], 3),
        (dict(base, model_type="llama", intermediate_size=100), [], 3),
        (dict(base, model_type="llama"), ["--arch", "olmoe"], 2),
        (dict(base, model_type="llama"), ["--arch", "gemma"], 2),
    ]
    for content, options, status in refused:
        with open(config, "w") as file:
            json.dump(content, file)
        out = path(folder, "no.gguf")
        p = subprocess.run([BENCH, "make-model", "--config", config, "--format", "gguf", "-o", out,
                            *options], capture_output=True, timeout=60)
        text = p.stderr.decode()
        tap.ok(p.returncode == status and not os.path.exists(out) and len(text.splitlines()) == 1,
               "refused: " + text.strip())


def main():
    with tempfile.TemporaryDirectory() as folder:
        for test in (test_architectures, test_containers, test_exact, test_extremes, test_mixed,
                     test_stories, test_tokenizers, test_pre_tokenizers, test_make_model):
            place = os.path.join(folder, test.__name__)
            os.makedirs(place)
            test(place)
        tap.ok(not [n for _, _, names in os.walk(folder) for n in names if ".part-" in n],
               "no temporary file is left")
    tap.done()


main()
