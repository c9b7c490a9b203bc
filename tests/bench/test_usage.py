"""Wrong usage of vflow-bench: one sentence on stderr, nothing on stdout, the right exit status."""
import os

from bench import BENCH, HOME, model, run
from tap import done, note, ok

DENSE = model("dense")
MISSING = os.path.join(HOME, "missing.vflow")
UNWRITABLE = os.path.join(HOME, "no-such-folder", "x.svg")

# (arguments, exit status, words of the sentence)
CASES = [
    (["sing"], 2, ["'sing'"]),
    (["ceiling", "--samples", "4"], 2, ["--samples", "'4'", "5"]),
    (["ceiling", "--threads", "0"], 2, ["--threads"]),
    (["ceiling", "extra"], 2, ["'extra'"]),
    (["matvec", "--shape", "round"], 2, ["--shape", "'round'", "8b-dense-down"]),
    (["matvec", "--quant", "q5"], 2, ["--quant", "'q5'"]),
    (["matvec", "--kernel", "neon"], 2, ["--kernel", "'neon'"]),
    (["matvec", "--seconds", "nan"], 2, ["--seconds"]),
    (["layout", "--rows", "200"], 2, ["--rows", "200", "128"]),
    (["layout", "--no-misses", "--no-clock"], 2, ["nothing to do"]),
    (["layout-pass", "--rows", "128", "--cols", "300"], 2, ["--cols"]),
    (["fused", "--colour", "red"], 2, ["'--colour'"]),
    (["prefetch", "--threads", "x"], 2, ["--threads", "'x'"]),
    (["hop", "--samples", "1"], 2, ["--samples"]),
    (["decode"], 2, ["decode"]),
    (["decode", DENSE, "--prompt", "0"], 2, ["--prompt", "'0'"]),
    (["decode", MISSING], 3, ["missing.vflow"]),
    (["flows", DENSE], 2, ["flows"]),
    (["formats", DENSE, DENSE], 2, ["both .vflow"]),
    (["workers", DENSE, "--workers", "0"], 2, ["--workers", "0 found"]),
    (["workers", DENSE, "--workers", "1,2,3", "--threads", "1,2,3"], 2, ["9 combinations", "8"]),
    (["workers", DENSE, "--threads", "one"], 2, ["--threads"]),
    (["workers", MISSING], 3, ["missing.vflow"]),
    (["hop", "--samples", "5", "--svg", UNWRITABLE], 1, ["x.svg"]),
]

for argv, status, words in CASES:
    p = run([BENCH, *argv])
    text = p.stderr.decode()
    good = p.returncode == status and not p.stdout and all(w in text for w in words)
    if not ok(good, "%s: status %d" % (" ".join(os.path.basename(a) for a in argv), status)):
        note("status %d, stdout %r, stderr %r" % (p.returncode, p.stdout[:100], text[:300]))

P = run([BENCH, "layout", "--no-clock"], env=dict(os.environ, PATH=HOME))
ok(P.returncode == 1 and b"valgrind" in P.stderr and b"--no-misses" in P.stderr and not P.stdout,
   "layout without valgrind says what to install or to leave out")
done()
