"""What plan says a token reads, against what a run reports that it read: every flow counted."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from proc import COORDINATOR, convert, done, note, ok, run, shared

PARTS = ("attention", "dense", "router", "experts", "head")
# Vectors (couplings, q/k norms) are in the plan and not among the matrices a run counts; in models this
# tiny they weigh. A flow that is forgotten is a third or more.
VECTORS_SHARE_MAX = 0.10


def check(*folder):
    model = convert(shared(*folder))
    plan = json.loads(run([COORDINATOR, "plan", "--model", model, "--json", "--bandwidth", "10"],
                          check=True).stdout)["bytes_per_token"]
    stats = json.loads(run([COORDINATOR, "generate", "--model", model, "--tokens", "1,2,3", "-n",
                            "20", "--ignore-eos", "--temperature", "0", "--json", "--experts",
                            "resident"], check=True).stdout)["stats"]
    planned, measured = sum(plan[p] for p in PARTS), stats["weight_bytes_per_token"]
    if not ok(0 <= planned - measured <= VECTORS_SHARE_MAX * planned,
              "%s: planned and measured bytes a token agree" % folder[-1]):
        note("planned %d, measured %d" % (planned, measured))


if __name__ == "__main__":
    for name in ("arch2_4_combined", "dual_flow_dense", "dual_flow_specific_dense",
                 "dual_moe_k1_2_k2_4_replay", "triple_flow", "arch5_fixed_point"):
        check("golden", name)
    check("models", "tiny_dual_moe")
    done()
