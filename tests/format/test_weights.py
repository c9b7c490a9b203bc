"""Weights that can't be stored or computed with: too small for their type, NaN, infinite. Real
programs; model files are patched with right checksums.
"""
import os
import struct
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap
import vflow_reader as reader
from checkpoints import small_moe, write_checkpoint

CONVERT, INSPECT = tap.program("vflow-convert"), tap.program("vflow-inspect")
COORDINATOR = tap.program("vflow-coordinator")


def run(*arguments):
    return subprocess.run(arguments, capture_output=True, timeout=120, text=True)


def test_small(folder):
    """Refused where much of a tensor is lost, warned of where rows are, else silent."""
    source, out = os.path.join(folder, "small"), os.path.join(folder, "small.vflow")
    names = {"q_proj": "model.layers.0.self_attn.q_proj.weight",
             "down_proj": "model.layers.1.mlp.down_proj.weight",
             "embed": "model.embed_tokens.weight", "head": "lm_head.weight",
             "expert": "model.layers.1.moe.experts.1.up_proj.weight"}
    config, tensors = small_moe(14)

    def convert(changed, quant):
        write_checkpoint(source, config, dict(tensors, **changed))
        return run(CONVERT, source, "-o", out, "--quant", quant)

    for quant in ("q4", "q8", "f16", "f32"):
        p = convert({}, quant)
        tap.ok(p.returncode == 0 and not p.stderr, "ordinary weights as %s %s" % (quant, p.stderr))
    for kind, name in names.items():
        for quant, exponent in (("q4", -26), ("q8", -26), ("f16", -26), ("f32", -100)):
            p = convert({name: tensors[name] * np.float32(2.0 ** exponent)}, quant)
            good = p.returncode == 0 and not p.stderr if quant == "f32" else (
                p.returncode == 3 and p.stderr.count("\n") == 1 and
                all(w in p.stderr for w in (kind, "too small", "row", "--quant f32")))
            tap.ok(good, "%s as %s: %s" % (kind, quant, p.stderr.strip()))
    rows = tensors[names["q_proj"]] * np.float32(2.0 ** -8)
    rows[5:8] *= np.float32(2.0 ** -17)
    for quant in ("q4", "q8"):
        p = convert({names["q_proj"]: rows}, quant)
        tap.ok(p.returncode == 0 and "q_proj" in p.stderr and "3 of 32 rows" in p.stderr,
               "rows beside larger ones: " + p.stderr.strip())
    rows[5:8] *= np.float32(2.0 ** -20)
    rows[9, 3:] *= np.float32(1e-9)
    p = convert({names["q_proj"]: rows}, "q8")
    tap.ok(p.returncode == 0 and not p.stderr,
           "rows below the others' last digit and tails in a group are nothing %s" % p.stderr)


def patched(path, offset, data):
    """A copy of the model file with other bytes there and checksums that fit."""
    file = reader.ModelFile(path)
    with open(path, "rb") as f:
        raw = bytearray(f.read())
    raw[offset:offset + len(data)] = data

    def put(at, begin, size):
        struct.pack_into("<Q", raw, at, reader.xxh3(bytes(raw[begin:begin + size])))

    for i, t in enumerate(file.tensors):
        put(file.sections["tensors"][0] + 64 * i + 40, t.offset, t.bytes)
    begin, size = file.sections["experts"]
    for at in range(begin, begin + size, 24):
        put(at + 16, *struct.unpack_from("<QQ", raw, at))
    for number in range(6):  # config to vectors
        put(64 + 32 * number + 24, *struct.unpack_from("<QQ", raw, 64 + 32 * number + 8))
    put(504, 0, 504)
    with open(path + ".patched", "wb") as f:
        f.write(raw)
    return path + ".patched"


def test_not_finite(folder):
    config, tensors = small_moe(15)
    source, out = os.path.join(folder, "finite"), os.path.join(folder, "finite.vflow")
    write_checkpoint(source, config, tensors)
    nan4, inf4 = struct.pack("<f", np.nan), struct.pack("<f", -np.inf)
    nan2, inf2 = struct.pack("<e", np.nan), struct.pack("<e", np.inf)
    cases = []
    for quant, bad in (("f32", nan4), ("f16", inf2), ("q8", nan2), ("q4", inf2)):
        cases += [(quant, ("q_proj", 0, 0), 0, bad, "layer 0 q_proj"),
                  (quant, "expert", 0, bad, "expert 0 gate_proj")]
    cases += [("q4", ("attn_norm", 1, 0), 8, nan4, "layer 1 attn_norm"),
              ("q4", ("final_norm", None, 0), 0, inf4, "final_norm"),
              ("q4", ("router", 1, 0), 0, nan4, "layer 1 router")]
    tokens = ",".join(str(t) for t in range(40))
    for quant, key, into, bad, word in cases:
        run(CONVERT, source, "-o", out, "--quant", quant)
        file = reader.ModelFile(out)
        labels = {(t.key[0].replace("_proj", ""),) + tuple(t.key[1:]): t for t in file.tensors}
        offset = struct.unpack_from("<Q", file.section("experts"))[0] if key == "expert" else \
            labels[(key[0].replace("_proj", ""),) + key[1:]].offset
        path = patched(out, offset + into, bad)
        p = run(INSPECT, "--verify", path)
        tap.ok(p.returncode == 3 and word in p.stderr and path in p.stderr and
               "must be finite" in p.stderr, "%s: %s" % (quant, p.stderr.strip()))
        for experts in (["resident"], ["stream", "--expert-cache", "16K"]):
            p = run(COORDINATOR, "score", "--model", path, "--tokens", tokens, "--experts", *experts)
            if not tap.ok(word in p.stderr and path in p.stderr and p.returncode == 3,
                          "and a run says so, " + experts[0]):
                tap.note("status %d: %s" % (p.returncode, p.stderr.strip()))


def main():
    for test in (test_small, test_not_finite):
        with tempfile.TemporaryDirectory() as folder:
            test(folder)
    tap.done()


main()
