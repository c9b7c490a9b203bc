"""The programs under test, called as a user calls them, and the little TAP that these tests print.

VFLOW_BIN names the folder of the built programs.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import shared_dir, small_data_dir  # noqa: E402, F401

SKIP = 77
TIMEOUT_S = 120


class EngineError(Exception):
    pass


def require_programs(*names):
    """Skips the test where a program isn't built."""
    folder = os.environ.get("VFLOW_BIN", "")
    for name in names:
        if not os.access(os.path.join(folder, name), os.X_OK):
            skip_all(f"no {name} in VFLOW_BIN ({folder or 'not set'})")


def call(program, *args):
    """The finished process; text output, never an endless wait."""
    command = [os.path.join(os.environ["VFLOW_BIN"], program), *map(str, args)]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as e:
        raise EngineError(f"no end after {TIMEOUT_S} s: {' '.join(command)}") from e


def call_ok(program, *args):
    done = call(program, *args)
    if done.returncode != 0:
        words = [str(a) if len(str(a)) < 60 else str(a)[:50] + "..." for a in args]
        command = " ".join([program, *words])
        raise EngineError(f"status {done.returncode}: {command}: {done.stderr.strip()[-1500:]}")
    return done


def convert(checkpoint, model, quant):
    call_ok("vflow-convert", checkpoint, "-o", model, "--quant", quant)


def score(model, tokens, *options):
    """float32 [T, V] as `score --logits` writes it, activations in f32."""
    out = model + ".npy"
    with contextlib.suppress(FileNotFoundError):
        os.remove(out)
    call_ok(
        "vflow-coordinator", "score", "--model", model, "--tokens", ",".join(map(str, tokens)),
        "--activations", "f32", "--logits", out, *options,
    )  # fmt: skip
    return np.load(out)


def greedy(model, prompt, count, *options):
    """The likeliest tokens after a prompt, token by token, past any end of sequence."""
    done = call_ok(
        "vflow-coordinator", "generate", "--model", model, "--tokens", ",".join(map(str, prompt)),
        "--max-tokens", count, "--temperature", 0, "--ignore-eos", "--activations", "f32",
        "--json", *options,
    )  # fmt: skip
    return json.loads(done.stdout)["tokens"]


def expert_bytes(model):
    """What a cache needs for one expert, as the coordinator says itself."""
    done = call(
        "vflow-coordinator", "score", "--model", model, "--tokens", "1",
        "--experts", "stream", "--expert-cache", 1,
    )  # fmt: skip
    words = done.stderr.split()
    if done.returncode == 0 or "needs" not in words:
        raise EngineError(f"a cache of one byte was taken: {done.stderr}")
    return int(words[words.index("needs") + 1])


class Tap:
    """Plan first, then results; exit status from finish()."""

    def __init__(self, count):
        self.count, self.run, self.failed = count, 0, 0
        print(f"1..{count}", flush=True)

    def ok(self, good, text):
        self.run += 1
        self.failed += not good
        print(f"{'' if good else 'not '}ok {self.run} - {text}", flush=True)
        return good

    def note(self, text):
        for line in str(text).splitlines():
            print(f"# {line}", flush=True)

    def finish(self):
        if self.run != self.count:
            print(f"not ok - planned {self.count} tests but ran {self.run}", flush=True)
        sys.exit(1 if self.failed or self.run != self.count else 0)


def skip_all(why):
    print(f"1..0 # SKIP {why}", flush=True)
    sys.exit(SKIP)


def scratch_dir():
    return tempfile.TemporaryDirectory(prefix="vflow-reference-")


def worst_difference(got, want):
    """max |got - want|; infinity where shapes differ or a NaN or infinity is met."""
    if got.shape != want.shape or not np.isfinite(got).all():
        return np.inf
    return float(np.abs(got - want).max())
