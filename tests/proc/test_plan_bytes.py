"""What plan says a token reads, against what a run reports that it read: every flow counted."""
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


if __name__ == "__main__":
    for name in ("arch2_4_combined", "dual_flow_dense", "dual_flow_specific_dense",
                 "dual_moe_k1_2_k2_4_replay", "triple_flow", "arch5_fixed_point"):
        check(shared("golden", name))
    check(tap.dual_mixture_dir())
    done()
