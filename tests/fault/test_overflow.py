"""Numbers that leave their range: keys and values beyond f16, residuals beyond f32. Each ends the
request that met it with a sentence that says where, and no other one."""
import json
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import numpy as np

from checkpoints import read_safetensors, to_f32, write_checkpoint
from proc import CONVERT, COORDINATOR, HOME, done, note, ok, run, shared

STORIES = shared("models", "stories260k")


def scaled(name, factors):
    """stories260k with the matrices of these names multiplied; the function may stay the same."""
    out = os.path.join(HOME, name)
    with open(os.path.join(STORIES, "config.json")) as f:
        config = json.load(f)
    tensors = {}
    for key, value in read_safetensors(os.path.join(STORIES, "model.safetensors")).items():
        for part, factor in factors.items():
            if part in key:
                value = value * np.float32(factor)
        tensors[key] = value
    write_checkpoint(out, config, tensors)
    shutil.copy(os.path.join(STORIES, "tokenizer.json"), out)
    model = out + ".vflow"
    run([CONVERT, out, "-o", model, "--quant", "f32"], check=True)
    return model


def generate(model, *options):
    return run([COORDINATOR, "generate", "-m", model, "-p", "Once upon a time", "-n", "8",
                "--temperature", "0", *options])


def check(what, got, words):
    text = got.stderr.decode()
    if not ok(got.returncode == 1 and text.count("\n") == 1 and all(w in text for w in words),
              what + ": status 1, one sentence"):
        note("%d %r" % (got.returncode, text))


PLAIN = generate(scaled("plain", {})).stdout
# The same function: what v_proj gains, o_proj loses.
LARGE_VALUES = scaled("values", {"v_proj": 2.0 ** 20, "o_proj": 2.0 ** -20})
LARGE_KEYS = scaled("keys", {"k_proj": 2.0 ** 20, "q_proj": 2.0 ** -20})
BEYOND_F32 = scaled("f32", {"layers.2.mlp.down_proj": 2.0 ** 126, "layers.2.mlp.up_proj": 2.0 ** 60})

for model, what in ((LARGE_VALUES, "values"), (LARGE_KEYS, "keys")):
    words = ["layer 0", what, "position 0", "65504", "--kv f32"]
    for options in ([], ["--stage-workers", "3"], ["--prefill-chunk", "1"],
                    ["--activations", "q8", "--threads", "2"]):
        check("%s beyond f16 %s" % (what, options), generate(model, *options), words)
    check(what + " beyond f16, score",
          run([COORDINATOR, "score", "-m", model, "--tokens", "1,5,9,14"]), words)
    got = generate(model, "--kv", "f32", "--activations", "f32")
    want = generate(scaled("plain", {}), "--kv", "f32", "--activations", "f32")
    ok(got.returncode == 0 and got.stdout == want.stdout, what + ": --kv f32 holds them")
for kv in ("f16", "f32"):
    check("a residual beyond f32, %s" % kv, generate(BEYOND_F32, "--kv", kv),
          ["layer 3", "range of f32"])
check("a residual beyond f32, three workers",
      generate(BEYOND_F32, "--kv", "f32", "--stage-workers", "3"), ["layer 3", "range of f32"])
ok(len(PLAIN) > 5, "and the model as it is talks")
done()
