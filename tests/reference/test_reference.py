"""The reference itself, proven on the golden checkpoints and the trained models: every
log-probability within 2e-5, quantised and not, and the greedy continuations."""

import os

import numpy as np

import engine
from golden_all import folders, greedy_case, load_json
from model_reference import Model

LIMIT = 2e-5
GREEDY = 12  # tokens to continue with; each costs a whole scoring


def check(directory, quant, file_name):
    golden = load_json(directory, "golden.json")
    model = Model.load(directory, quant)
    want = np.load(os.path.join(directory, file_name))
    got = model.score(golden["tokens"])
    worst = engine.worst_difference(got, want)
    good = worst <= LIMIT and bool((got.argmax(1) == want.argmax(1)).all())
    text = f"worst {worst:.1e}"
    case = greedy_case(golden, quant)
    if case:
        tokens, gap = model.greedy(case[0], min(GREEDY, len(case[1])))
        good &= tokens == case[1][: len(tokens)]
        text += f", {len(tokens)} greedy tokens (smallest gap {gap:.4f})"
    return good, text


def main():
    chosen = list(folders())
    tap = engine.Tap(2 * len(chosen))
    for name, directory in chosen:
        for quant, file_name in (("f32", "logp.npy"), ("q4", "logp_q4.npy")):
            good, text = check(directory, quant, file_name)
            tap.ok(good, f"{name} {quant}: {text}")
    tap.finish()


if __name__ == "__main__":
    main()
