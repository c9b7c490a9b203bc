"""The simulated L1 misses are a fact about the code, not about the machine: the tiles must miss at
least 6.7 times less than a walk row by row at every shape, and hardly more than once per line."""
import shutil

from bench import BENCH, result
from tap import done, note, ok, skip_all

if not shutil.which("valgrind"):
    skip_all("valgrind isn't installed")
with open(BENCH, "rb") as f:
    code = f.read()
if b"__asan_init" in code or b"__tsan_init" in code:
    skip_all("a sanitizer's build can't run under valgrind")

ROWS = result("layout", "--no-clock", "--rows", "256")["misses"]
BY = {(r["shape"], r["activations"], r["walk"]): r for r in ROWS}
SHAPES = ["8b-dense-down", "8b-attention", "8b-gate-up"]
ok(len(BY) == len(SHAPES) * 2 * 3, "three shapes, two activation precisions, three walks")
for shape in SHAPES:
    tiled = BY[shape, "f32", "tiled"]
    ratio = BY[shape, "f32", "row by row"]["over_tiled"]
    ok(ratio >= 6.7, "%s: %.2f times fewer L1 read misses than row by row" % (shape, ratio))
    for acts in ("f32", "q8"):
        lines = BY[shape, acts, "tiled"]["per_weight_line"]
        ok(1 <= lines < 1.15, "%s, %s: tiles miss %.3f times per line" % (shape, acts, lines))
    note("%s: %d and %d misses" % (shape, tiled["l1_read_misses"],
                                   BY[shape, "f32", "row by row"]["l1_read_misses"]))
done()
