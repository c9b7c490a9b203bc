"""Experts begun at their gate and up while down is still being read: on a slow drive it happens, in
steps of one column and of many, and no log-probability changes by a bit; not when an I/O worker dies
with the front in the hands of a stage worker either."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from proc import COORDINATOR, HOME, done, environment, ids, note, ok, run, score
from tap import program

MODEL = os.path.join(HOME, "fronts.vflow")
TOKENS = [i * 37 % 900 for i in range(10)]
CONFIG = {  # records of 1.7 MiB: two pieces of gate and up, one of down
    "model_type": "olmoe", "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 1024, "num_experts": 8,
    "num_experts_per_tok": 2, "vocab_size": 1000, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "norm_topk_prob": False,
}
SLOW = ["--experts", "stream", "--expert-cache", "6M", "--io-throttle", "200M"]


def make_model():
    config = os.path.join(HOME, "config.json")
    with open(config, "w") as f:
        json.dump(CONFIG, f)
    run([program("vflow-bench"), "make-model", "--config", config, "-o", MODEL], check=True)


def check_bits(activations):
    options = ["--activations", activations]
    want = score(MODEL, TOKENS, *options, "--experts", "resident").tobytes()
    for chunk in ("1", "4"):
        rows = score(MODEL, TOKENS, *options, *SLOW, "--prefill-chunk", chunk)
        ok(rows.tobytes() == want, "%s, %s columns a step: the same bits" % (activations, chunk))
    killed = score(MODEL, TOKENS, *options, *SLOW, "--prefill-chunk", "1",
                   env=environment(VFLOW_FAULT="io.checksum:15=kill"))
    ok(killed.tobytes() == want, activations + ", an I/O worker killed behind the front: the same bits")


def generate(*options):
    p = run([COORDINATOR, "generate", "--model", MODEL, "--tokens", ids(TOKENS), "-n", "8",
             "--temperature", "0", "--ignore-eos", "--json", *options], check=True)
    return json.loads(p.stdout)


def check_count():
    slow, resident = generate(*SLOW), generate("--experts", "resident")
    s = slow["stats"]
    note("%d early of %d late and %d on demand" % (s["expert_early"], s["expert_late"],
                                                   s["expert_demand"]))
    ok(0 < s["expert_early"] <= s["expert_late"] + s["expert_demand"],
       "experts of a slow drive are begun early")
    ok(slow["tokens"] == resident["tokens"] and resident["stats"]["expert_early"] == 0,
       "the same text as with experts in memory, which have no fronts")


make_model()
check_bits("f32")
check_bits("q8")
check_count()
done()
