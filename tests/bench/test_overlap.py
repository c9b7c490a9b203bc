"""vflow-bench overlap on a tiny delayed model: every cell with its figures, the same reads in both
arms, none in the one whose cache holds everything, a drawing, and what is refused. No timing counts:
only what must hold on a machine of any speed."""
import math
import os
import xml.etree.ElementTree as ET

import bench
from bench import BENCH, HOME, model, result, run
from tap import done, note, ok

LAYERS, TOP = 4, 2
MOE = dict(num_experts=8, num_experts_per_tok=TOP, moe_intermediate_size=128,
           num_hidden_layers=LAYERS)
DELAYED = model("delayed", expert_delay=2, dense_delay=1, **MOE)
UNDELAYED = model("undelayed", **MOE)
DENSE = model("dense")
MISSING = os.path.join(HOME, "missing.vflow")
TIMES = ["threads", "drive_gb_per_s", "sync_ms", "sync_ms_p10", "sync_ms_p90", "sync_stall_ms",
         "staged_ms", "staged_ms_p10", "staged_ms_p90", "staged_stall_ms", "hidden", "win",
         "win_p10", "win_p90", "sync_read_bytes", "staged_read_bytes", "cached_read_bytes"]
FIGURES = ["threads", "drive_gb_per_s", "compute_ms", "compute_ms_p10", "compute_ms_p90", "reads_ms",
           "reads_floor_ms", "win", "model", "off_model", "off_model_p10", "off_model_p90",
           "interference", "interference_p10", "interference_p90", "model_taxed",
           "off_model_taxed"]

SVG = os.path.join(HOME, "overlap.svg")
GOT = result("overlap", DELAYED, "--tokens", "6", "--threads", "1,2", "--reads", "40,100",
             "--svg", SVG)
ROWS = [dict(a, **b) for a, b in zip(GOT["rows"], GOT["model"])]
ok([r["threads"] for r in GOT["rows"]] == [r["threads"] for r in GOT["model"]] == [1, 1, 2, 2],
   "a row for every combination")
ok(all(isinstance(r.get(k), (int, float)) and math.isfinite(r[k]) for r in ROWS
       for k in TIMES + FIGURES),
   "every figure is there and finite")
ok(GOT["outputs"] == "identical" and GOT["layers_with_experts"] == LAYERS and
   GOT["read_bytes_per_token"] == LAYERS * TOP * GOT["expert_bytes"], "the model's own figures")

# A throttled drive is never faster than it is told to be: sync waits for all of its reads.
EACH = GOT["expert_bytes"]
for r in ROWS:
    name = "%d threads, %.2f MB/s: " % (r["threads"], r["drive_gb_per_s"] * 1e3)
    bytes_ms = r["sync_read_bytes"] / r["drive_gb_per_s"] * 1e-6
    ok(EACH <= r["sync_read_bytes"] <= GOT["read_bytes_per_token"] and r["cached_read_bytes"] == 0 and
       EACH <= r["staged_read_bytes"] <= GOT["read_bytes_per_token"],
       name + "sync and staged read, the cached arm doesn't")
    ok(r["reads_ms"] > 0.5 * bytes_ms, name + "sync waits for its reads")
    staged_ms = r["staged_read_bytes"] / r["drive_gb_per_s"] * 1e-6
    ok(r["reads_floor_ms"] > 0.99 * staged_ms and
       r["reads_ms"] == r["sync_stall_ms"] and r["off_model_p10"] <= r["off_model"],
       name + "IO_eff is at least the bytes' time")
ok(ET.parse(SVG).getroot().tag.endswith("svg"), "a drawing")

TABLE = run([BENCH, "overlap", DELAYED, "--tokens", "5", "--threads", "1", "--reads", "drive"],
            check=True).stdout.decode()
ok("net win" in TABLE and "identical" in TABLE, "the drive as it is, as a table")

for argv, status, words in [
        ([], 2, ["overlap"]),
        ([MISSING], 3, ["missing.vflow"]),
        ([DENSE], 3, ["experts"]),
        ([UNDELAYED], 2, ["expert_delay 0"]),
        ([DELAYED, "--reads", "1,,2"], 2, ["--reads", "1,,2"]),
        ([DELAYED, "--reads", "0"], 2, ["--reads", "'0'"]),
        ([DELAYED, "--reads", "drives"], 2, ["--reads", "'drives'"]),
        ([DELAYED, "--reads", "0.01"], 2, ["--reads", "latency"]),
        ([DELAYED, "--threads", "0"], 2, ["--threads"]),
        ([DELAYED, "--tokens", "4"], 2, ["--tokens", "5"])]:
    p = run([BENCH, "overlap", *argv])
    text = p.stderr.decode()
    good = p.returncode == status and not p.stdout and all(w in text for w in words)
    if not ok(good, "overlap %s: status %d" % (" ".join(map(os.path.basename, argv)), status)):
        note("status %d, stderr %r" % (p.returncode, text[:300]))
done()
