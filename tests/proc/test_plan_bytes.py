"""What plan says a token reads, of memory and of the drive, against what a run reports that it read."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap
from checkpoints import read_safetensors
from proc import COORDINATOR, convert, done, note, ok, run, shared

PARTS = ("attention", "dense", "router", "experts", "head")
# Vectors that are in the plan and not among the matrices that a run counts.
VECTORS = ("_coupling", "q_norm.weight", "k_norm.weight")


def vector_bytes(folder):
    """Of the f32 vectors of one pass over the layers."""
    with open(os.path.join(folder, "config.json")) as f:
        passes = json.load(f).get("fixed_point_iterations", 1)
    tensors = read_safetensors(os.path.join(folder, "model.safetensors"))
    return 4 * passes * sum(t.size for name, t in tensors.items() if name.endswith(VECTORS))


def check(folder):
    model = convert(folder)
    plan = json.loads(run([COORDINATOR, "plan", "--model", model, "--json", "--bandwidth", "10"],
                          check=True).stdout)["bytes_per_token"]
    stats = json.loads(run([COORDINATOR, "generate", "--model", model, "--tokens", "1,2,3", "-n",
                            "20", "--ignore-eos", "--temperature", "0", "--json", "--experts",
                            "resident"], check=True).stdout)["stats"]
    planned, measured = sum(plan[p] for p in PARTS), stats["weight_bytes_per_token"]
    if not ok(planned - measured == vector_bytes(folder),
              "%s: planned and measured bytes a token agree" % os.path.basename(folder)):
        note("planned %d, measured %d, vectors %d" % (planned, measured, vector_bytes(folder)))


def check_drive(folder, slots):
    """A trained model's tokens resemble their neighbours, so a run reads less than planned; a first
    token, which finds nothing, is not planned."""
    model = convert(folder)
    options = ["--experts", "stream", "--speculate", "off", "--expert-cache", str(slots * 28672)]
    expected = json.loads(run([COORDINATOR, "plan", "--model", model, "--json", "--bandwidth", "10",
                               *options], check=True).stdout)["expected"]["drive"]
    stats = json.loads(run([COORDINATOR, "generate", "--model", model, "-p", "Once upon a time",
                            "-n", "200", "--ignore-eos", "--seed", "3", "--json", *options],
                           check=True).stdout)["stats"]
    planned, measured = expected["bytes_per_token"], stats["drive_bytes_per_token"]
    ok(0.4 * planned < measured < planned,
       "%d experts in the cache: %.0f bytes a token from the drive planned, %.0f read"
       % (slots, planned, measured))


if __name__ == "__main__":
    for name in ("arch2_4_combined", "dual_flow_dense", "dual_flow_specific_dense",
                 "dual_moe_k1_2_k2_4_replay", "triple_flow", "arch5_fixed_point"):
        check(shared("golden", name))
    check(tap.dual_mixture_dir())
    for slots in (7, 14, 28, 38):
        check_drive(os.path.join(tap.source_dir(), "models", "tiny_arch2_4"), slots)
    done()
