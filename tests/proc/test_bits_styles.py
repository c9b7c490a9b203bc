"""The same bits for every combine style and flow form: each golden model scored over a few far
apart corners of what must not matter (test_bits.py varies one thing at a time on two models)."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap
from proc import convert, done, environment, note, ok, score, shared
from test_bits import record_bytes, tokens_of

EMULATED = environment(VFLOW_EMULATE_AVX512="1")


def corners(model, other, smallest):
    """(name, model, options, environment)"""
    stream = ["--experts", "stream", "--expert-cache", smallest] if smallest else []
    return [
        ("scalar, 1 thread, one by one", model,
         ["--kernel", "scalar", "--threads", "1", "--prefill-chunk", "1"], None),
        ("emulated VNNI, 2 threads, chunks of 5", model,
         ["--kernel", "vnni", "--threads", "2", "--prefill-chunk", "5"], EMULATED),
        ("emulated AVX-512, 2 stage workers, smallest cache", model,
         ["--kernel", "avx512", "--stage-workers", "2"] + stream, EMULATED),
        ("3 stage workers, smallest cache, 2 I/O workers, sync", model,
         ["--stage-workers", "3", "--overlap", "sync"] + stream +
         (["--io-workers", "2"] if smallest else []), None),
        (".cflow, 2 stage workers, buffered, chunks of 7", other,
         ["--stage-workers", "2", "--io", "buffered", "--prefill-chunk", "7"] + stream, None),
    ]


def check(folder, activations):
    model, other = convert(folder), convert(folder, suffix="cflow")
    text = tokens_of(folder)
    name = "%s %s" % (os.path.basename(folder), activations)
    base = score(model, text, "--activations", activations)
    ok(bool((base == base).all()) and len(set(base[:, 0])) > 1,
       "%s: log-probabilities are numbers, and differ" % name)
    has_experts = "\"num_experts\"" in open(folder + "/config.json").read()
    for what, file, options, env in corners(model, other,
                                            record_bytes(model) if has_experts else None):
        got = score(file, text, "--activations", activations, *options, env=env)
        if not ok(got.tobytes() == base.tobytes(), "%s: the same bytes with %s" % (name, what)):
            note("largest difference %g" % abs(got - base).max())


if __name__ == "__main__":
    golden = shared("golden")
    folders = sorted(os.path.join(golden, f) for f in os.listdir(golden)
                     if os.path.isdir(os.path.join(golden, f)))
    if tap.dual_mixture_dir() not in folders:
        folders.append(tap.dual_mixture_dir())
    for precision in sys.argv[1:] or ["f32", "q8"]:
        for model_folder in folders:
            check(model_folder, precision)
    done()
