"""Every golden checkpoint and every trained model, against the values that came with them.

    golden_all.py [NAME ...]

Each is converted as q4 to .vflow and to .cflow, and as f32 to one of them; the q4 files are scored
by one and by three stage workers, models with experts streamed through a small cache and resident.
Log-probabilities are within 1e-3 (f32: 1e-4) of the golden ones at every entry, the argmax is the
same at every position, and greedy generation gives the golden tokens.
"""

import filecmp
import json
import os
import sys

import numpy as np

import engine

CACHES = (1, 3)  # experts that a small cache holds: as little as can be, and some
LIMITS = {"q4": 1e-3, "f32": 1e-4}


def folders():
    """(name, path) of every checkpoint with golden values: of the test data, then of the small set
    what isn't the same."""
    full, small = engine.shared_dir(), engine.small_data_dir()
    yield from ((os.path.basename(path), path) for path in checkpoints(full))
    if os.path.samefile(full, small):
        return
    for path in checkpoints(small):
        twin = os.path.join(full, os.path.relpath(path, small), "golden.json")
        if not os.path.isfile(twin) or not filecmp.cmp(twin, os.path.join(path, "golden.json")):
            yield "small " + os.path.basename(path), path


def checkpoints(data):
    for kind in ("golden", "models"):
        for name in sorted(os.listdir(os.path.join(data, kind))):
            if os.path.isfile(os.path.join(data, kind, name, "golden.json")):
                yield os.path.join(data, kind, name)


def load_json(*path):
    with open(os.path.join(*path)) as f:
        return json.load(f)


def greedy_case(golden, quant):
    """(prompt, expected continuation), or None."""
    if "greedy_prompt" in golden:
        return (golden["greedy_prompt"], golden["greedy_q4"]) if quant == "q4" else None
    tokens = golden["greedy_logp" + ("_q4" if quant == "q4" else "")]
    return tokens[:1], tokens[1:]


def ways(model, quant, experts):
    """The options of every run of one file, with a few words for each."""
    workers = (1, 3) if quant == "q4" else (2,)
    if not experts:
        return [(f"{w} workers", ["--stage-workers", w]) for w in workers]
    one = engine.expert_bytes(model)
    out = []
    for w, n in zip(workers, CACHES):
        for words, options in (
            ("resident", ["--experts", "resident"]),
            (f"cache of {n}", ["--experts", "stream", "--expert-cache", n * one]),
        ):
            out.append((f"{w} workers {words}", ["--stage-workers", w, *options]))
    return out


def check_scores(model, tokens, want, limit, options):
    got = engine.score(model, tokens, *options)
    worst = engine.worst_difference(got, want)
    same = got.shape == want.shape and bool((got.argmax(1) == want.argmax(1)).all())
    return worst <= limit and same, f"worst {worst:.1e}" + ("" if same else ", argmax differs")


def check_greedy(model, case, options):
    prompt, want = case
    got = engine.greedy(model, prompt, len(want), *options)
    if got == want:
        return True, f"{len(want)} greedy tokens"
    at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    return False, f"greedy differs at {at}: {got[at : at + 4]} for {want[at : at + 4]}"


def check_file(directory, model, quant):
    """(good, lines) for one converted file."""
    golden = load_json(directory, "golden.json")
    config = load_json(directory, "config.json")
    want = np.load(os.path.join(directory, "logp_q4.npy" if quant == "q4" else "logp.npy"))
    case = greedy_case(golden, quant)
    good, lines = True, []
    for words, options in ways(model, quant, config.get("num_experts")):
        try:
            results = [check_scores(model, golden["tokens"], want, LIMITS[quant], options)]
            if case:
                results.append(check_greedy(model, case, options))
        except engine.EngineError as e:
            results = [(False, str(e))]
        good &= all(fine for fine, _ in results)
        lines.append(f"{words}: " + ", ".join(text for _, text in results))
    return good, lines


def check_model(tap, number, name, directory):
    f32_format = ("vflow", "cflow")[number % 2]
    for quant, suffix in (("q4", "vflow"), ("q4", "cflow"), ("f32", f32_format)):
        with engine.scratch_dir() as scratch:
            model = os.path.join(scratch, "model." + suffix)
            try:
                engine.convert(directory, model, quant)
                good, lines = check_file(directory, model, quant)
            except engine.EngineError as e:
                good, lines = False, [str(e)]
        tap.ok(good, f"{name} {quant} .{suffix}")
        tap.note("\n".join(lines))


def main():
    engine.require_programs("vflow-convert", "vflow-coordinator")
    chosen = [f for f in folders() if not sys.argv[1:] or f[0] in sys.argv[1:]]
    tap = engine.Tap(3 * len(chosen))
    for number, (name, directory) in enumerate(chosen):
        check_model(tap, number, name, directory)
    tap.finish()


if __name__ == "__main__":
    main()
