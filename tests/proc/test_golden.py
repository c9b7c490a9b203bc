"""Log-probabilities and greedy tokens against the golden files of an independent implementation."""
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from proc import convert, done, generate, note, ok, run, score, shared, within, COORDINATOR

TINY = shared("models", "tiny_arch2_4")
STORIES = shared("models", "stories260k")


def load(folder):
    with open(os.path.join(folder, "golden.json")) as f:
        return json.load(f)


def check_scores(folder, model, reference, limit, *options):
    golden = load(folder)
    want = np.load(os.path.join(folder, reference))
    got = score(model, golden["tokens"], "--activations", "f32", *options)
    name = "%s %s %s" % (os.path.basename(folder), reference, " ".join(options))
    worst, close = within(got, want, limit)
    ok(close, "%s: every entry within %g (largest difference %s)" % (name, limit, worst))
    ok(got.shape == want.shape and np.array_equal(got.argmax(1), want.argmax(1)),
       "%s: the same argmax at every position" % name)


def check_greedy(folder, model, *options):
    golden = load(folder)
    if "greedy_q4" in golden:
        prompt, want = golden["greedy_prompt"], golden["greedy_q4"]
    else:
        prompt, want = golden["greedy_logp_q4"][:1], golden["greedy_logp_q4"][1:]
    got = generate(model, prompt, len(want), "--activations", "f32", *options)
    if not ok(got == want, "%s %s: %d greedy tokens" % (os.path.basename(folder),
                                                        " ".join(options), len(want))):
        note("found  %s" % got)
        note("wanted %s" % want)


def check_random():
    """Every architecture, in one stage worker and in two."""
    folders = sorted(d for d in os.listdir(shared("golden")) if os.path.isdir(shared("golden", d)))
    for folder in (shared("golden", d) for d in folders):
        check_scores(folder, convert(folder), "logp_q4.npy", 1e-3)
        check_greedy(folder, convert(folder))
        check_greedy(folder, convert(folder), "--stage-workers", "2")
        check_scores(folder, convert(folder, "--quant", "f32"), "logp.npy", 1e-4,
                     "--prefill-chunk", "5")


def check_stories():
    model = convert(STORIES)
    check_scores(STORIES, model, "logp_q4.npy", 1e-3)
    check_scores(STORIES, convert(STORIES, "--quant", "f32"), "logp.npy", 1e-4)
    check_greedy(STORIES, model)


def check_tiny():
    model = convert(TINY)
    stream = ("--experts", "stream", "--expert-cache", "320K")
    check_scores(TINY, model, "logp_q4.npy", 1e-3)
    check_scores(TINY, convert(TINY, "--quant", "f32"), "logp.npy", 1e-4)
    for stages in "123":
        for io in "12":
            options = ("--stage-workers", stages, "--io-workers", io, *stream)
            check_scores(TINY, model, "logp_q4.npy", 1e-3, *options)
            check_greedy(TINY, model, *options)


def mean_nll(folder, activations):
    p = run([COORDINATOR, "score", "--model", convert(folder), "--json", "--activations",
             activations, "--tokens", ",".join(map(str, load(folder)["tokens"]))], check=True)
    return json.loads(p.stdout)["mean_nll"]


def check_likelihood():
    """The number that `score` prints, and what int8 activations cost."""
    for folder in (STORIES, TINY):
        name, want = os.path.basename(folder), load(folder)["logp_q4_mean_nll"]
        f32, q8 = mean_nll(folder, "f32"), mean_nll(folder, "q8")
        ok(abs(f32 - want) < 2e-4, "%s: mean nll %.6f with f32, %.6f expected" % (name, f32, want))
        cost = float(np.exp(q8 - f32)) - 1
        ok(abs(cost) < 0.02, "%s: q8 activations change the perplexity by %+.2f%%"
           % (name, 100 * cost))


if __name__ == "__main__":
    parts = {"random": check_random, "stories": check_stories, "tiny": check_tiny,
             "likelihood": check_likelihood}
    for part in sys.argv[1:] or parts:
        parts[part]()
    done()
