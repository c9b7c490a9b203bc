"""Models with made-up routing: in a real forward pass their experts are chosen as the formula says,
a layer's router read early knows them as well as it should, both file formats hold the same model,
and a seed says it all.

The forward pass is the slow reference's, over the weights that an independent reader finds in the
file; the engine is held to the same log-probabilities. The formula is simulated here.
"""
import collections
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(HERE, "..", "reference")]
import tap
import vflow_reader as reader
from checkpoints import checkpoint_name, expert_name
from model_reference import Model, parse_config

BENCH = tap.program("vflow-bench")
CONVERT = tap.program("vflow-convert")
COORDINATOR = tap.program("vflow-coordinator")
tap.program("vflow-stage-worker")

EXPERTS, TOP, LAYERS, TOKENS = 32, 4, 6, 250
MOE = dict(model_type="qwen3_moe", hidden_size=256, num_hidden_layers=LAYERS,
           num_attention_heads=4, num_key_value_heads=2, head_dim=64, intermediate_size=32,
           moe_intermediate_size=32, num_experts=EXPERTS, num_experts_per_tok=TOP,
           norm_topk_prob=True, vocab_size=600, hidden_act="silu", rms_norm_eps=1e-6,
           max_position_embeddings=512, rope_theta=1000000.0, tie_word_embeddings=False)
NATIVE = dict(model_type="pipeline_native", hidden_size=256, num_hidden_layers=LAYERS,
              num_attention_heads=4, num_key_value_heads=4, intermediate_size=64,
              moe_intermediate_size=32, num_experts=EXPERTS, num_experts_per_tok=TOP,
              vocab_size=400, hidden_act="gelu", max_position_embeddings=512)
FRESH, OLDER, OLDER_WINDOWS = 0.08, 0.028, 3  # the drift's shares, as the documentation says


def make(folder, name, config, *options):
    """The file's path, None when vflow-bench fails."""
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    path = os.path.join(folder, name)
    p = subprocess.run([BENCH, "make-model", "--config", os.path.join(folder, "config.json"),
                        "-o", path, *options], capture_output=True, timeout=120)
    return path if p.returncode == 0 else tap.note(p.stderr.decode().strip())


def score(path, tokens, activations):
    out = path + ".npy"
    subprocess.run([COORDINATOR, "score", "--model", path, "--tokens", ",".join(map(str, tokens)),
                    "--activations", activations, "--threads", "1", "--logits", out],
                   check=True, capture_output=True, timeout=120)
    return np.load(out)


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Recorder(Model):
    """Remembers what each layer's router read and answered."""

    @classmethod
    def of_file(cls, path):
        f = reader.ModelFile(path)
        tensors = {checkpoint_name(t.key): f.weights(t).astype(float) for t in f.tensors}
        parts, _ = f.expert_parts()
        for layer in range(f.config["num_hidden_layers"]):
            for e in range(f.config["num_experts"]):
                record = f.expert(layer, e)
                for name, at, rows, cols in parts:
                    data = record[at:at + reader.matrix_bytes(f.quant, rows, cols)]
                    w = reader.unpack_matrix(data, rows, cols, f.quant)
                    tensors[expert_name(layer, e, name)] = w.astype(float)
        return cls(parse_config(f.config), tensors)

    def route(self, layer, rs):
        self.read = getattr(self, "read", [])
        self.read.append(rs[0])
        return super().route(layer, rs)

    def logits_of(self, layer, residual):
        return residual @ self.tensors["model.layers.%d.moe.router.weight" % layer].T


# ---- what a choice of experts is like ----

def best(logits):
    return np.argsort(-logits, axis=1, kind="stable")[:, :TOP]


def shared(a, b):
    """The mean share of the experts in the rows of a that the rows of b have too."""
    return np.mean([len(set(x) & set(y)) / TOP for x, y in zip(a, b)])


def overlap(chosen):
    return shared(chosen[1:], chosen[:-1])


def lru_hits(chosen, slots):
    cache, hits = collections.OrderedDict(), 0
    for experts in chosen:
        for e in experts:
            hits += e in cache
            cache[e] = True
            cache.move_to_end(e)
            if len(cache) > slots:
                cache.popitem(last=False)
    return hits / chosen.size


def statistics(layers):
    return np.array([np.mean([overlap(c) for c in layers]),
                     np.mean([lru_hits(c, EXPERTS // 4) for c in layers]),
                     np.mean([lru_hits(c, EXPERTS // 2) for c in layers])])


def formula(a, b, r, layers=40):
    """Choices of layers whose logits follow the formula."""
    rng = np.random.default_rng(1)
    out = []
    for _ in range(layers):
        popularity, persistent = rng.standard_normal((2, EXPERTS))
        logits = np.empty((TOKENS, EXPERTS))
        for t in range(TOKENS):
            noise = rng.standard_normal(EXPERTS)
            logits[t] = np.sqrt(a) * popularity + np.sqrt(b) * persistent + np.sqrt(1 - a - b) * noise
            persistent = r * persistent + np.sqrt(1 - r * r) * rng.standard_normal(EXPERTS)
        out.append(best(logits))
    return out


def recall(unknown):
    """Of the chosen experts by logits of which a share of the variance isn't known."""
    rng = np.random.default_rng(2)
    known, other = rng.standard_normal((2, 20000, EXPERTS))
    return shared(best(np.sqrt(1 - unknown) * known + np.sqrt(unknown) * other), best(known *
                  np.sqrt(1 - unknown)))


# ---- tests ----

def check_statistics(label, model, a, b, r):
    logits = [model.logits_of(layer, x) for layer, x in enumerate(model.read)]
    chosen = [best(z) for z in logits]
    got, want = statistics(chosen), statistics(formula(a, b, r))
    text = "overlap %.3f, LRU hits %.3f and %.3f" % tuple(got)
    tap.ok(np.all(np.abs(got - want) <= (0.04, 0.06, 0.06)),
           "%s: %s; the formula's %.3f, %.3f, %.3f" % (label, text, *want))
    spread = [z.std() for z in logits]
    tap.ok(np.all(np.abs(np.array(spread) - 1) <= 0.15),
           "%s: logits with deviation %.2f to %.2f" % (label, min(spread), max(spread)))
    for early in (1, 2, 3):
        got = np.mean([shared(chosen[layer], best(model.logits_of(layer, model.read[layer - early])))
                       for layer in range(3, LAYERS)])
        want = recall(FRESH + (early - 1) * OLDER)
        tap.ok(abs(got - want) <= 0.03, "%s: router read %d early knows %.3f of its experts; "
               "expected %.3f" % (label, early, got, want))


def test_statistics(folder):
    for label, config, routing, shares in (
            ("flat", MOE, "flat", (0, 0, 0)),
            ("realistic", MOE, "realistic", (0.3, 0.5, 0.55)),
            ("a dense FFN and experts", NATIVE, "0.5,0.2,0.8", (0.5, 0.2, 0.8))):
        path = make(folder, "m.vflow", config, "--routing", routing, "--seed", "5")
        if not tap.ok(path, "%s: a model is written" % label):
            continue
        model = Recorder.of_file(path)
        tokens = [(300 + t) % config["vocab_size"] for t in range(TOKENS)]
        want = model.score(tokens)
        check_statistics(label, model, *shares)
        off = np.abs(score(path, tokens, "f32") - want).max()
        tap.ok(off <= 1e-3 and np.isfinite(want).all(), "%s: the engine computes the same, %.1e off"
               % (label, off))


def test_late_experts(folder):
    """With an expert delay an expert's half of the drift goes to the router that sees it first."""
    config = dict(NATIVE, expert_delay=2, dense_delay=1)
    path = make(folder, "m.vflow", config, "--routing", "0.4,0.3,0.5", "--seed", "6")
    if tap.ok(path, "expert delay: a model is written"):
        model = Recorder.of_file(path)
        model.score([(7 + t) % config["vocab_size"] for t in range(TOKENS)])
        check_late_statistics(model)


def check_late_statistics(model):
    chosen = [best(model.logits_of(layer, x)) for layer, x in enumerate(model.read)]
    got, want = statistics(chosen), statistics(formula(0.4, 0.3, 0.5))
    tap.ok(np.all(np.abs(got - want) <= (0.04, 0.06, 0.06)),
           "expert delay: overlap %.3f, LRU hits %.3f and %.3f; the formula's %.3f, %.3f, %.3f"
           % (*got, *want))


def test_first_layer(folder):
    """From 96 experts on, realistic has a nearly flat first layer."""
    global EXPERTS, TOP
    saved, EXPERTS, TOP = (EXPERTS, TOP), 128, 8
    config = dict(MOE, num_experts=128, num_experts_per_tok=8, num_hidden_layers=4)
    path = make(folder, "m.vflow", config, "--routing", "realistic", "--seed", "7")
    if tap.ok(path, "128 experts: a model is written"):
        model = Recorder.of_file(path)
        model.score(list(range(100, 100 + TOKENS)))
        each = [overlap(best(model.logits_of(l, x))) for l, x in enumerate(model.read)]
        tap.ok(abs(each[0] - 0.07) <= 0.02 and abs(np.mean(each[1:]) - 0.38) <= 0.05,
               "128 experts: overlap %.3f in layer 0, then %.3f" % (each[0], np.mean(each[1:])))
    EXPERTS, TOP = saved


def test_formats(folder):
    config = dict(MOE, hidden_size=512, num_hidden_layers=2, num_experts=8)
    a = make(folder, "a.vflow", config, "--routing", "realistic", "--seed", "3")
    again = make(folder, "again.vflow", config, "--routing", "realistic", "--seed", "3")
    other = make(folder, "other.vflow", config, "--routing", "realistic", "--seed", "4")
    gguf = make(folder, "m.gguf", config, "--routing", "realistic", "--seed", "3", "--format", "gguf")
    if not tap.ok(a and again and other and gguf, "both formats are written"):
        return
    tap.ok(read(a) == read(again), "a seed says every byte")
    tap.ok(read(a) != read(other), "another seed says others")
    b = os.path.join(folder, "b.vflow")
    subprocess.run([CONVERT, gguf, "-o", b], check=True, capture_output=True, timeout=120)
    x, y = reader.ModelFile(a), reader.ModelFile(b)
    tap.ok(all(x.bytes_of(t) == y.bytes_of(y.by_key[t.key]) for t in x.tensors) and
           [e[2] for e in x.experts] == [e[2] for e in y.experts],
           "the GGUF file holds the same bytes in every tensor")
    tokens = list(range(40, 140))
    for activations in ("f32", "q8"):
        p, q = (score(path, tokens, activations) for path in (a, b))
        tap.ok(p.tobytes() == q.tobytes() and np.isfinite(p).all(),
               "the same log-probabilities to the bit, %s" % activations)
    for quant in ("q8", "f32"):
        path = make(folder, "q.vflow", config, "--routing", "realistic", "--seed", "3", "--quant", quant)
        f = path and reader.ModelFile(path)
        off = max(np.abs(f.weights(f.by_key[k, 1, 0]) - x.weights(x.by_key[k, 1, 0])).max() /
                  np.abs(x.weights(x.by_key[k, 1, 0])).max() for k in ("q", "o", "router"))
        tap.ok(off <= (0.005 if quant == "q8" else 0.001), "%s holds the same weights: %.1e off"
               % (quant, off))
    p = subprocess.run([COORDINATOR, "generate", "--model", a, "--tokens", "590", "--max-tokens",
                        "30", "--temperature", "0", "--ignore-eos", "--json"],
                       check=True, capture_output=True, timeout=120)
    got = json.loads(p.stdout)["tokens"]
    tap.ok(got == [(591 + t) % 600 for t in range(30)], "greedy decoding walks the vocabulary")


def test_refused(folder):
    dense = dict(NATIVE, num_experts=0)
    del dense["num_experts_per_tok"], dense["moe_intermediate_size"]
    cases = [(MOE, text, "--routing") for text in
             ("", "real", "0.5", "0.5,0.2", "0.5,0.2,0.1,0", "0.6,0.5,0.1", "-0.1,0.2,0.1",
              "0.1,0.1,1", "nan,0,0", "0.1,0.2,0.3x")]
    cases += [(config, "flat", word) for config, word in (
        (dense, "experts"), (dict(MOE, tie_word_embeddings=True), "ties"),
        (dict(NATIVE, combine_style="async_experts"), "combine_style"),
        (dict(NATIVE, num_flows=2), "flows"), (dict(MOE, hidden_size=96, num_hidden_layers=20),
                                               "too small"))]
    for config, routing, word in cases:
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(config, file)
        out = os.path.join(folder, "no.vflow")
        p = subprocess.run([BENCH, "make-model", "--config", os.path.join(folder, "config.json"),
                            "--routing", routing, "-o", out], capture_output=True, timeout=60)
        text = p.stderr.decode()
        tap.ok(p.returncode == 2 and word in text and len(text.splitlines()) == 1 and
               not os.path.exists(out), "refused: " + text.strip())


def main():
    with tempfile.TemporaryDirectory() as folder:
        for test in (test_statistics, test_late_experts, test_first_layer, test_formats,
                     test_refused):
            test(folder)
    tap.done()


main()
