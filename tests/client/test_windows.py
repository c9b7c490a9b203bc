"""A text longer than the context: every row is the one that its window gives when it is scored by
itself, to the bit, whatever the chunks, the company and the side that asks."""
import json
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from serving import COORDINATOR, Server, done, model, note, ok, path, run

CONTEXT = 24
RNG = np.random.default_rng(11)


def score(tokens, *options, check=True, text=None):
    out = path("rows.npy")
    given = ["--file", text] if text else ["--tokens", ",".join(map(str, tokens))]
    p = run([COORDINATOR, "score", "--model", model(), *given, "--logits", out, "--json",
             *options], check=check)
    return (np.load(out), json.loads(p.stdout)) if p.returncode == 0 else p


def by_hand(tokens, context, stride):
    """Windows as Hugging Face's guide cuts them, each scored alone."""
    rows, end = np.empty((len(tokens), 0), np.float32), 0
    for begin in range(0, len(tokens), stride):
        last = min(begin + context, len(tokens))
        own, _ = score(tokens[begin:last], "--ctx", str(context))
        if not rows.size:
            rows = np.full((len(tokens), own.shape[1]), np.nan, np.float32)
        first = max(end - 1, 0)
        upto = last if last == len(tokens) else last - 1
        rows[first:upto] = own[first - begin:upto - begin]
        end = last
        if last == len(tokens):
            break
    return rows


def check(tokens, context, stride, *options):
    want = by_hand(tokens, context, stride)
    got, result = score(tokens, "--ctx", str(context), "--stride", str(stride), *options)
    nll = -np.mean([want[t - 1, tokens[t]].astype(np.float64) for t in range(1, len(tokens))])
    what = "%d tokens, context %d, stride %d %s" % (len(tokens), context, stride, options)
    ok(got.tobytes() == want.tobytes() and not np.isnan(got).any(), what + ": the same rows")
    if not ok(abs(result["mean_nll"] / nll - 1) < 1e-8 and result["tokens"] == len(tokens),
              what + ": the mean of all tokens but the first"):
        note("%r, want %r" % (result["mean_nll"], nll))
    return result


def test_windows():
    for count, stride in ((25, 1), (25, 23), (47, 12), (48, 12), (49, 7), (100, 23), (61, 20)):
        tokens = [int(t) for t in RNG.integers(0, 2048, count)]
        result = check(tokens, CONTEXT, stride, "--prefill-chunk", str(int(RNG.integers(1, 40))))
        ok(result["windows"] == -(-(count - CONTEXT) // stride) + 1 and result["stride"] == stride,
           "%d windows are told" % result["windows"])
    tokens = [int(t) for t in RNG.integers(0, 2048, 90)]
    half, told = score(tokens, "--ctx", str(CONTEXT))
    given, _ = score(tokens, "--ctx", str(CONTEXT), "--stride", str(CONTEXT // 2))
    ok(half.tobytes() == given.tobytes() and told["stride"] == CONTEXT // 2,
       "without --stride: half the context")
    for options in (["--stage-workers", "3"], ["--threads", "2", "--prefill-chunk", "5"]):
        got, _ = score(tokens, "--ctx", str(CONTEXT), *options)
        ok(got.tobytes() == half.tobytes(), "the same bits with " + " ".join(options))
    short, told = score(tokens[:CONTEXT], "--ctx", str(CONTEXT))
    ok(told["windows"] == 1 and told["stride"] is None and len(short) == CONTEXT,
       "a text that fits has one window")


def test_refused():
    tokens = list(range(50))
    for options, word in ((["--ctx", "24", "--stride", "24"], b"1 to 23"),
                          (["--ctx", "1"], b"at least 2"), (["--stride", "0"], b"from 1")):
        p = score(tokens, *options, check=False)
        ok(p.returncode in (1, 2) and word in p.stderr, "refused: " + " ".join(options)) or \
            note("%r" % p.stderr)


def test_client():
    tokens = [int(t) for t in RNG.integers(0, 2048, 130)]
    want, told = score(tokens, "--ctx", str(CONTEXT), "--stride", "9")
    out = path("client.npy")
    with Server("--ctx", str(CONTEXT), "--batch", "3") as server:
        company = server.start_client("generate", "-p", "Once upon a time", "-n", "15")
        got = server.client("score", "--tokens", ",".join(map(str, tokens)), "--stride", "9",
                            "--logits", out, "--json", check=True)
        company.wait(timeout=60)
        result = json.loads(got.stdout)
        ok(np.load(out).tobytes() == want.tobytes(), "a client's windows, in company: the same rows")
        ok(all(result[k] == told[k] for k in ("tokens", "windows", "stride", "token_logp")),
           "the same numbers")
        p = server.client("score", "--tokens", ",".join(map(str, tokens)), "--stride", "24")
        ok(p.returncode == 2 and b"1 to 23" in p.stderr, "a stride of the whole context is refused")
        server.stop()


def test_standard_input():
    text = path("story.txt")
    with open(text, "w") as f:
        f.write("Once upon a time there was a little dog. " * 30)
    want = run([COORDINATOR, "score", "--model", model(), "--ctx", "64", "--file", text],
               check=True).stdout
    with open(text, "rb") as f:
        got = run([COORDINATOR, "score", "--model", model(), "--ctx", "64", "--file", "-"],
                  input=f.read(), check=True).stdout
    ok(want == got and want.startswith(b"tokens"), "score --file - reads standard input")


test_windows()
test_refused()
test_client()
test_standard_input()
done()
