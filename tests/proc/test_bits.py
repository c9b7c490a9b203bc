"""The same bits everywhere: one text, one file, one activation precision, and the bytes of every
log-probability compared over all that must not matter."""
import json
import os
import random
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap
from proc import HOME, convert, done, note, ok, environment, score, shared

TINY = shared("models", "tiny_arch2_4")
STORIES = shared("models", "stories260k")
DUAL = tap.dual_mixture_dir()
TOKENS = 96  # of the text; several chunks, several attention records
EMULATED = environment(VFLOW_EMULATE_AVX512="1")


def tokens_of(folder):
    with open(folder + "/golden.json") as f:
        return json.load(f)["tokens"][:TOKENS]


def record_bytes(model):
    """The smallest --expert-cache, as the error for a smaller one says it."""
    try:
        score(model, [1], "--experts", "stream", "--expert-cache", "1")
    except RuntimeError as e:
        return str(e).split("one expert of this model needs ")[1].split()[0]
    raise RuntimeError("a cache of one byte was accepted")


def variants(model, other, smallest):
    """(name, model, options, environment)"""
    stream = ["--experts", "stream", "--expert-cache"]
    small = stream + [smallest]
    some = stream + ["200K"]
    out = [("kernel " + k, model, ["--kernel", k], EMULATED)
           for k in ("scalar", "avx2", "avx512", "vnni")]
    out += [("threads " + n, model, ["--threads", n], None) for n in "12"]
    out += [("stage workers " + n, model, ["--stage-workers", n], None) for n in "123"]
    out += [("prefill chunk " + n, model, ["--prefill-chunk", n], None) for n in ("512", "7", "1")]
    out += [("batch 3", model, ["--batch", "3"], None), (".cflow", other, [], None)]
    out += [("huge pages, %s stage workers" % n, model,
             ["--weights", "huge", "--stage-workers", n], None) for n in "12"]
    if smallest is None:
        return out
    out += [("experts resident", model, ["--experts", "resident"], None),
            ("large cache", model, stream + ["64M"], None),
            ("cache of 200K", model, some, None),
            ("smallest cache", model, small, None),
            ("smallest cache, 2 I/O workers", model, small + ["--io-workers", "2"], None),
            ("smallest cache, one by one", model, small + ["--prefill-chunk", "1"], None),
            ("smallest cache, 3 stage workers", model, small + ["--stage-workers", "3"], None)]
    out += [("%s %s I/O" % (overlap, io), model, some + ["--overlap", overlap, "--io", io], None)
            for overlap in ("staged", "sync") for io in ("direct", "buffered")]
    out += [("sync, smallest cache, buffered, 2 stage workers, 2 I/O workers, .cflow", other,
             small + ["--overlap", "sync", "--io", "buffered", "--stage-workers", "2",
                      "--io-workers", "2", "--threads", "1", "--prefill-chunk", "5"], None),
            ("one read at a time", model, some + ["--io-depth", "1"], None),
            ("scalar kernel, 2 stage workers, streamed", model,
             some + ["--kernel", "scalar", "--stage-workers", "2"], None)]
    return out


def check(folder, activations, streams):
    model, other = convert(folder), convert(folder, suffix="cflow")
    text = tokens_of(folder)
    base = score(model, text, "--activations", activations)
    name = "%s %s" % (folder.rsplit("/", 1)[1], activations)
    ok(base.shape[0] == len(text) and bool((base == base).all()) and len(set(base[:, 0])) > 1,
       "%s: log-probabilities are numbers, and differ" % name)
    want = base.tobytes()
    for what, file, options, env in variants(model, other, record_bytes(model) if streams else None):
        got = score(file, text, "--activations", activations, *options, env=env)
        if not ok(got.tobytes() == want, "%s: the same bytes with %s" % (name, what)):
            note("largest difference %g" % abs(got - base).max())


def sliding_model():
    """A golden model whose window reaches over a block of keys, and begins inside one."""
    folder = os.path.join(HOME, "sliding")
    shutil.copytree(shared("golden", "parallel_sqrt2"), folder, dirs_exist_ok=True)
    with open(folder + "/config.json") as f:
        config = json.load(f)
    config.update(sliding_window=300, max_position_embeddings=700)
    with open(folder + "/config.json", "w") as f:
        json.dump(config, f)
    return folder


def check_long(folder, count, activations):
    """More keys than a block of attention has: columns of one step see different blocks."""
    model = convert(folder)
    with open(folder + "/config.json") as f:
        vocabulary = json.load(f)["vocab_size"]
    chance = random.Random(count)
    text = [chance.randrange(3, vocabulary) for _ in range(count)]
    base = score(model, text, "--activations", activations, "--prefill-chunk", "1", "--threads", "1")
    for what, options in (("chunks of 256, 1 thread", ["--threads", "1"]),
                          ("chunks of 512", ["--prefill-chunk", "512"]),
                          ("chunks of 5", ["--prefill-chunk", "5"]),
                          ("chunks of 64, scalar", ["--prefill-chunk", "64", "--kernel", "scalar"]),
                          ("chunks of 37, 2 stage workers", ["--prefill-chunk", "37",
                                                             "--stage-workers", "2"])):
        got = score(model, text, "--activations", activations, *options)
        if not ok(got.tobytes() == base.tobytes(), "%s %s, %d positions: the same bytes in %s" %
                  (os.path.basename(folder), activations, count, what)):
            note("largest difference %g" % abs(got - base).max())


if __name__ == "__main__":
    which = sys.argv[1] if len(sys.argv) > 1 else None
    for precision in [which] if which else ["f32", "q8"]:
        check(TINY, precision, True)
        check(STORIES, precision, False)
        check(DUAL, precision, True)
        check_long(STORIES, 500, precision)
        check_long(sliding_model(), 650, precision)
    done()
