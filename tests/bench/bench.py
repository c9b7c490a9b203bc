"""What the tests of vflow-bench share: tiny models, and results as JSON."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap  # noqa: E402
from processes import HOME, run  # noqa: E402,F401

BENCH = tap.program("vflow-bench")
TINY = {"model_type": "pipeline_native", "hidden_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 256,
        "vocab_size": 256, "hidden_act": "silu"}


def model(name, fmt="vflow", **changes):
    """A model of random weights; made once."""
    path = os.path.join(HOME, "%s.%s" % (name, fmt))
    config = os.path.join(HOME, name + ".json")
    if not os.path.exists(path):
        with open(config, "w") as f:
            json.dump(dict(TINY, **changes), f)
        run([BENCH, "make-model", "--config", config, "-o", path, "--format", fmt], check=True)
    return path


def result(*argv, timeout=240):
    """The JSON object of a benchmark."""
    p = run([BENCH, *argv, "--json"], check=True, timeout=timeout)
    return json.loads(p.stdout)
