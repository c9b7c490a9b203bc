"""Speculative prefetch on the golden models without expert delay: the guesses, counted by the
engine, against the independent model's own routers applied a layer or two early; and that no
log-probability changes by a bit, whether guesses are made, not made, or made now and then."""

import json
import os
import subprocess
import sys

import numpy as np

import engine
from model_reference import Model, rank, rms_norm

REACH = 2
STEPS = 40  # of one column each
CASES = ("sequential_moe", "parallel_sqrt2", "dual_moe_k1_2_k2_4_replay",
         "dual_moe_k1_2_k2_4_independent")


class Guessing(Model):
    """Keeps, for every layer, what its router chose and what would have been guessed from it."""

    def residuals(self, tokens, nudge=0.0, phase=0):
        self.margin = np.inf
        self.logits_from = {}  # (layer, layers ahead) -> [flow][T, experts]; 0 ahead: its own
        return super().residuals(tokens, nudge, phase)

    def ffn_norm(self, layer, xs):
        self.normed = xs
        return super().ffn_norm(layer, xs)

    def experts(self, layer, rs):
        assert np.allclose(rs[0], super().ffn_norm(layer, self.normed)[0])
        for ahead in range(REACH + 1):
            to = layer + ahead
            if to >= self.c.layers:
                break
            w = self.norm_weight(f"model.layers.{to}.post_attention_layernorm")
            router = self.tensors[f"model.layers.{to}.moe.router.weight"]
            self.logits_from[to, ahead] = [
                rms_norm(x, w, self.c.eps) @ router.T for x in self.normed
            ]
        return super().experts(layer, rs)

    def best(self, logits, k):
        order = rank(logits[None])[0]
        if k < self.c.experts:
            self.margin = min(self.margin, logits[order[k - 1]] - logits[order[k]])
        return set(int(e) for e in order[:k])

    def union(self, layer, ahead, t, flows):
        """Of the flows at position t: what they choose (0 ahead), or what is guessed."""
        logits = self.logits_from[layer, ahead]
        ks = [self.c.top_k] + [self.c.top_k_aux] * (flows - 1)
        if self.c.router == "independent":
            return set().union(*(self.best(logits[j][t], ks[j]) for j in range(flows)))
        return self.best(logits[0][t], max(ks[:flows]))


def expected(model, tokens, prompt, groups):
    """[layers ahead - 1] -> (guessed, right, chosen) of steps of one position each."""
    model.score(tokens)
    counts = np.zeros((REACH, 3), int)
    for t in range(len(tokens)):
        flows = model.c.flows if t >= prompt - 1 else 1
        for first, last in groups:
            for layer in range(first + 1, last + 1):
                chosen = model.union(layer, 0, t, flows)
                for ahead in range(1, min(REACH, layer - first) + 1):
                    guess = model.union(layer, ahead, t, flows)
                    counts[ahead - 1] += len(guess), len(guess & chosen), len(chosen)
    return counts


def groups_of(path, workers):
    """(first, last) layer with experts of each worker that has any."""
    plan = json.loads(engine.call_ok("vflow-coordinator", "plan", "--model", path, "--json",
                                     "--stage-workers", workers).stdout)
    layers = [[] for _ in range(workers)]
    for op in plan["program"]:
        if op["op"] == "route":
            layers[op["worker"]].append(op["layer"])
    return [(min(own), max(own)) for own in layers if own]


def generate(path, prompt, cache, *options):
    out = engine.call_ok(
        "vflow-coordinator", "generate", "--model", path, "--tokens", ",".join(map(str, prompt)),
        "--max-tokens", STEPS - len(prompt) + 1, "--temperature", 0, "--ignore-eos", "--json",
        "--experts", "stream", "--expert-cache", cache, *options)
    return json.loads(out.stdout)


def counts_of(speculation):
    return [[a["guessed"], a["right"], a["chosen"]] for a in speculation["ahead"]]


def check_counts(tap, model, path, prompt, cache, workers):
    got = generate(path, prompt, cache, "--speculate", "on", "--prefill-chunk", 1,
                   "--activations", "f32", "--stage-workers", workers)
    tokens = prompt + got["tokens"][:-1]
    groups = groups_of(path, workers)
    want = expected(model, tokens, len(prompt), groups).tolist()
    s = got["stats"]["speculation"]
    tap.note(f"smallest margin {model.margin:.1e}; {want}")
    tap.ok(model.margin > 1e-5 and counts_of(s) == want and want[0][1] > 0,
           f"{workers} stage workers of layers {groups}: guessed, right and chosen as computed")
    tap.ok(s["steps"] == s["steps_guessed"] == STEPS * workers and s["on"],
           "every step of every worker guessed")
    tap.note(f"{s['reads_used']} guesses read and used, {s['reads_wasted']} wasted")
    return got["tokens"]


def check_bits(tap, path, tokens, cache):
    options = ("--activations", "q8", "--experts", "stream", "--expert-cache")
    want = engine.score(path, tokens, "--activations", "q8", "--experts", "resident").tobytes()
    for mode, size, chunk, workers in (
        ("on", engine.expert_bytes(path), 1, 1), ("on", cache, 1, 2), ("on", cache, 6, 1),
        ("auto", cache, 1, 1), ("auto", cache, 32, 2), ("off", cache, 1, 1),
    ):  # fmt: skip
        rows = engine.score(path, tokens, *options, size, "--speculate", mode,
                            "--prefill-chunk", chunk, "--stage-workers", workers)
        tap.ok(rows.tobytes() == want, f"--speculate {mode}, cache of {size} bytes, "
               f"{chunk} columns, {workers} stage workers: the same bits")


def check_nothing(tap, path, delayed, prompt, cache):
    off = generate(path, prompt, cache, "--speculate", "off")["stats"]["speculation"]
    tap.ok(off is None, "--speculate off: nothing to report")
    long = prompt * 5  # 20 positions: chunks of 9, 9 and 2
    s = generate(path, long, cache, "--speculate", "on", "--prefill-chunk", 9)
    tap.ok(s["stats"]["speculation"]["steps"] == 1 + STEPS - len(long),
           "steps of 9 columns don't guess")
    s = generate(delayed, prompt, 1 << 20, "--speculate", "on")["stats"]["speculation"]
    tap.ok(s is None, "experts with a delay are known early: nothing to guess")


def check_orders(tap, program, path):
    """What an expert source sees, told by a program of its own (guess_orders.c)."""
    done = subprocess.run([program, path], capture_output=True, text=True, timeout=60)
    tap.note(done.stdout + done.stderr)
    lines = done.stdout.splitlines()
    tap.ok(done.returncode == 0 and sum(line.startswith("ok") for line in lines) == 9
           and not any(line.startswith("not ok") for line in lines), "the orders themselves")


def main():
    engine.require_programs("vflow-coordinator", "vflow-stage-worker", "vflow-io-worker",
                            "vflow-convert")
    golden = os.path.join(engine.shared_dir(), "golden")
    tap = engine.Tap(len(CASES) * (2 * 2 + 1 + 6) + 4)
    with engine.scratch_dir() as scratch:
        for name in CASES:
            directory = os.path.join(golden, name)
            path = os.path.join(scratch, name + ".vflow")
            engine.convert(directory, path, "f32")
            tap.note(name)
            with open(os.path.join(directory, "golden.json")) as file:
                tokens = json.load(file)["tokens"][:STEPS]
            cache = 6 * engine.expert_bytes(path)
            model = Guessing.load(directory)
            texts = [check_counts(tap, model, path, tokens[:4], cache, w) for w in (1, 2)]
            tap.ok(texts[0] == texts[1], "the same text")
            check_bits(tap, path, tokens, cache)
            if name == CASES[0]:
                delayed = os.path.join(scratch, "delayed.vflow")
                engine.convert(os.path.join(golden, "arch2_4_combined"), delayed, "f32")
                check_nothing(tap, path, delayed, tokens[:4], cache)
                check_orders(tap, sys.argv[1], path)
            os.unlink(path)
    tap.finish()


if __name__ == "__main__":
    main()
