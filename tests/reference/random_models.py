"""Random models, scored by the engine and by the reference.

    random_models.py [--count N] [--seed S] [--keep DIR]

Model S is a checkpoint of its own (random_config.py, checkpoint_writer.py), converted as q4 and as
f32, in .vflow and .cflow, and scored by real processes: 1 to 3 stage workers, streamed or resident
experts, threads, prompt chunks and kernels drawn at random. Entry by entry the log-probabilities
are within 1e-3 of the reference for q4 and within 1e-4 for f32, and the best token is the same
wherever the reference's best two are further apart than twice that.

The start of the text is also continued greedily, token by token, and gives the reference's tokens
as far as these are clear.

A float32 engine may rightly choose another expert where two router logits nearly coincide, so
texts on which the reference's closest decision is within ROUTER_MARGIN are drawn anew. So are texts
on which a model blows rounding up: a NUDGE of the embeddings moves a score by more than MOVED_MAX.
"""

import argparse
import json
import os

import numpy as np

import engine
from checkpoint_writer import random_tensors, write_checkpoint
from model_reference import Model
from random_config import random_config

LIMITS = {"q4": 1e-3, "f32": 1e-4}
ARGMAX_GAP = 2e-3
ROUTER_MARGIN = 3e-5
NUDGE = 1e-7  # about a float32 rounding
NUDGE_PHASES = (0, 1, 2)
MOVED_MAX = 1e-5
TEXT_LENGTH = 40
LONG_TEXT_LENGTH = 330
DRAWS = 24
DRAWS_PER_LENGTH = 3  # then texts of half the length are tried
GREEDY = 6  # tokens that a text is continued with


def effective_layers(raw):
    return raw["num_hidden_layers"] * raw.get("fixed_point_iterations", 1)


def has_experts(raw):
    return bool(raw.get("num_experts") or raw.get("num_local_experts"))


def text_length(raw):
    long = raw["max_position_embeddings"] > LONG_TEXT_LENGTH
    return LONG_TEXT_LENGTH if long else TEXT_LENGTH


def draw_text(model, length_max, rng):
    """Tokens, their reference scores; None where no draw is well-conditioned."""
    for draw in range(DRAWS):
        longest = max(1, length_max >> draw // DRAWS_PER_LENGTH)
        length = longest if rng.random() < 0.5 else int(rng.integers(1, longest + 1))
        tokens = rng.integers(0, model.c.vocab, length).tolist()
        model.router_margin = np.inf
        log_p = model.score(tokens)
        if model.router_margin <= ROUTER_MARGIN:
            continue
        nudged = (model.score(tokens, NUDGE, phase) for phase in NUDGE_PHASES)
        if all(np.abs(other - log_p).max() <= MOVED_MAX for other in nudged):
            return tokens, log_p
    return None


def run_options(raw, model, rng):
    """How the processes run: none of it may change a result."""
    options = ["--stage-workers", int(rng.integers(1, min(3, effective_layers(raw)) + 1))]
    options += ["--threads", int(rng.integers(1, 3))]
    options += ["--prefill-chunk", int(rng.integers(1, text_length(raw) + 10))]
    options += ["--kernel", str(rng.choice(["auto", "auto", "scalar"]))]
    if has_experts(raw):
        options += expert_options(model, rng)
    return options


def expert_options(model, rng):
    if rng.random() < 0.4:
        return ["--experts", "resident"]
    options = ["--experts", "stream", "--io-workers", int(rng.integers(1, 3))]
    options += ["--overlap", str(rng.choice(["staged", "sync"]))]
    options += ["--io", str(rng.choice(["direct", "buffered"]))]
    if rng.random() < 0.7:
        options += ["--expert-cache", int(rng.integers(1, 9)) * engine.expert_bytes(model)]
    return options


def compare(got, want, quant):
    """(good, what was measured)"""
    worst = engine.worst_difference(got, want)
    if not np.isfinite(worst):
        return False, f"{quant}: shape {got.shape} of {want.shape}, or not finite"
    best = np.sort(want, axis=1)[:, -2:]
    clear = best[:, 1] - best[:, 0] > ARGMAX_GAP
    same = bool((got.argmax(1) == want.argmax(1))[clear].all())
    return worst <= LIMITS[quant] and same, f"{quant} {worst:.1e}" + ("" if same else " argmax")


def clear_continuation(model, prompt):
    """The reference's greedy tokens up to the first that isn't clear."""
    model.router_margin, tokens = np.inf, []
    while len(tokens) < GREEDY:
        (token,), gap = model.greedy(prompt + tokens, 1)
        if gap <= ARGMAX_GAP or model.router_margin <= ROUTER_MARGIN:
            break
        tokens.append(token)
    return tokens


def check_greedy(reference, model, tokens, options):
    """(good, what was seen)"""
    prompt = tokens[: max(1, min(len(tokens), TEXT_LENGTH) // 2)]
    want = clear_continuation(reference, prompt)
    got = engine.greedy(model, prompt, len(want), *options) if want else []
    return got == want, f"{len(want)} greedy" + ("" if got == want else f" {got} for {want}")


def try_file(raw, checkpoint, model, quant, rng):
    """(good, what was measured, how it ran) for one converted file."""
    reference = Model.load(checkpoint, quant)
    text = draw_text(reference, text_length(raw), rng)
    if text is None:
        return True, f"{quant}: no well-conditioned text", ""
    tokens, want = text
    how = f"{os.path.basename(model)}: tokens {tokens}"
    try:
        engine.convert(checkpoint, model, quant)
        options = run_options(raw, model, rng)
        how += " " + " ".join(map(str, options))
        good, seen = compare(engine.score(model, tokens, *options), want, quant)
        if quant == "q4":
            same, greedy = check_greedy(reference, model, tokens, options)
            good, seen = good and same, f"{seen}, {greedy}"
        return good, seen, how
    except engine.EngineError as e:
        return False, f"{quant}: {e}", how


def try_model(seed, directory):
    """(good, one line, details for a failure)"""
    rng = np.random.default_rng(seed)
    raw = random_config(seed, rng)
    checkpoint = os.path.join(directory, "checkpoint")
    write_checkpoint(checkpoint, raw, random_tensors(raw, rng), rng)
    good, results, details = True, [], [json.dumps(raw)]
    for quant, suffix in zip(LIMITS, rng.permutation(["vflow", "cflow"])):
        model = os.path.join(directory, f"{quant}.{suffix}")
        fine, seen, how = try_file(raw, checkpoint, model, quant, rng)
        good &= fine
        results.append(seen)
        details.append(how)
    return good, f"seed {seed} {summary(raw)}: {', '.join(results)}", details


def summary(raw):
    kind = raw["model_type"]
    if kind == "pipeline_native":
        kind = raw.get("combine_style", "delayed_sum")
    delays = f"{raw.get('dense_delay', 0)}/{raw.get('expert_delay', 0)}"
    experts = raw.get("num_experts") or raw.get("num_local_experts") or 0
    return (
        f"{kind} L={raw['num_hidden_layers']} d={raw['hidden_size']} delays {delays}"
        f" E={experts} flows {raw.get('num_flows', 1)}"
    )


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--count", type=int, default=24, help="models to try")
    args.add_argument("--seed", type=int, default=0, help="the first one")
    args.add_argument("--keep", help="leave a failed model's files under this folder")
    args = args.parse_args()
    engine.require_programs("vflow-convert", "vflow-coordinator")
    tap = engine.Tap(args.count)
    for seed in range(args.seed, args.seed + args.count):
        with engine.scratch_dir() as directory:
            good, line, details = try_model(seed, directory)
            if not tap.ok(good, line):
                tap.note("\n".join(details))
                if args.keep:
                    os.makedirs(args.keep, exist_ok=True)
                    os.rename(directory, os.path.join(args.keep, str(seed)))
                    os.makedirs(directory)  # for the clean-up
    tap.finish()


if __name__ == "__main__":
    main()
