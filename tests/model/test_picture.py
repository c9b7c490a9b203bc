"""docs/pipeline.svg is what plan draws today of the bundled model, in the dark as in the light."""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tap import done, note, ok, program, source_dir

# Nothing of this machine: bandwidth, memory and workers are given.
COMMAND = ["plan", "--config", "tiny_arch2_4/config.json", "--quant", "q4", "--stage-workers", "2",
           "--threads", "1", "--bandwidth", "10", "--memory", "4G", "--svg"]

with tempfile.TemporaryDirectory() as home:
    out = os.path.join(home, "pipeline.svg")
    subprocess.run([program("vflow-coordinator"), *COMMAND, out], check=True,
                   cwd=os.path.join(source_dir(), "models"), stdout=subprocess.DEVNULL)
    with open(out) as f:
        drawn = f.read()
with open(os.path.join(source_dir(), "docs", "pipeline.svg")) as f:
    kept = f.read()
if not ok(drawn == kept, "docs/pipeline.svg is what plan draws"):
    note("in models/: vflow-coordinator %s ../docs/pipeline.svg" % " ".join(COMMAND))
ok("prefers-color-scheme:dark" in kept and 'width="900"' in kept, "it has a dark side, and fits a page")
with open(os.path.join(source_dir(), "README.md")) as f:
    ok("docs/pipeline.svg" in f.read(), "the README shows it")
done()
