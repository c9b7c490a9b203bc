"""Tokenizers from the checkpoint to the prompt: what no run would accept is refused when a model is
converted, what only concerns other programs is ignored, texts grow within bounds, and a beginning
of sequence is there once. Real programs throughout.
"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap
import vflow_reader as reader

CONVERT = tap.program("vflow-convert")
COORDINATOR = tap.program("vflow-coordinator")
STORIES = os.path.join(tap.shared_dir(), "models", "stories260k")
with open(os.path.join(STORIES, "tokenizer.json")) as good_file:
    GOOD = json.load(good_file)
TOKENIZER_ENTRY = 64 + 32  # the section's entry in a model file's header


def run(*arguments, **more):
    return subprocess.run(arguments, capture_output=True, timeout=120, text=True, **more)


def checkpoint(folder, tokenizer=None):
    """stories260k with another tokenizer.json: an object, a text, or none."""
    path = os.path.join(folder, "checkpoint")
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(os.path.join(STORIES, name), path)
    if tokenizer is not None:
        with open(os.path.join(path, "tokenizer.json"), "w") as file:
            file.write(tokenizer if isinstance(tokenizer, str) else json.dumps(tokenizer))
    return path


def convert(source, folder, *options):
    path = os.path.join(folder, "model.vflow")
    return path, run(CONVERT, source, "-o", path, *options)


def generate(model, *arguments):
    return run(COORDINATOR, "generate", "--model", model, "--temperature", "0", "-n", "12", *arguments)


def test_refused(folder):
    unigram = dict(GOOD, model={"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]]})
    for tokenizer, word in ((unigram, "Unigram"), ({"model": {"type": "WordPiece"}}, "WordPiece"),
                            ("{}", "model"), ("[1]", "object"), ("", "JSON"),
                            (dict(GOOD, normalizer={"type": "Lowercase"}), "Lowercase"),
                            (dict(GOOD, decoder={"type": "CTC"}), "CTC")):
        source = checkpoint(folder, tokenizer)
        path, p = convert(source, folder)
        tap.ok(p.returncode == 3 and p.stderr.count("\n") == 1 and "tokenizer.json" in p.stderr and
               word in p.stderr and "--no-tokenizer" in p.stderr and not os.path.exists(path),
               "refused: " + p.stderr.strip())
        path, p = convert(source, folder, "--no-tokenizer")
        tap.ok(p.returncode == 0 and not p.stderr and
               reader.ModelFile(path).section("tokenizer") == b"", "and left out on request")
        os.remove(path)
    source = checkpoint(folder)
    os.symlink("../blobs/gone", os.path.join(source, "tokenizer.json"))
    path, p = convert(source, folder)
    tap.ok(p.returncode == 3 and "tokenizer.json" in p.stderr and "../blobs/gone" in p.stderr,
           "a link that leads nowhere: " + p.stderr.strip())
    os.remove(os.path.join(source, "tokenizer.json"))
    os.symlink("../gone", os.path.join(source, "model.safetensors.index.json"))
    path, p = convert(source, folder)
    tap.ok(p.returncode == 3 and "index.json" in p.stderr and "../gone" in p.stderr,
           "so with the index of the weights: " + p.stderr.strip())
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 1045368\n" % 0
    for name in ("config.json", "model.safetensors", "tokenizer.json",
                 "model.safetensors.index.json"):
        source = checkpoint(folder, GOOD)
        with open(os.path.join(source, name), "w") as file:
            file.write(pointer)
        path, p = convert(source, folder)
        tap.ok(p.returncode == 3 and name in p.stderr and "git lfs pull" in p.stderr,
               p.stderr.strip())
    for name, program in (("m.gguf", [CONVERT, "-o", "x.vflow"]),
                          ("m.vflow", [COORDINATOR, "score", "--tokens", "1,2", "--model"])):
        with open(os.path.join(folder, name), "w") as file:
            file.write(pointer)
        p = run(*program, os.path.join(folder, name), cwd=folder)
        tap.ok(p.returncode == 3 and name in p.stderr and "git lfs pull" in p.stderr,
               p.stderr.strip())


def test_ignored(folder):
    plain, p = convert(checkpoint(folder, GOOD), folder)
    want = generate(plain, "-p", "Once upon a time, there was a long text", "--json")
    for sections in ({"truncation": {"max_length": 3, "strategy": "LongestFirst"}},
                     {"padding": {"strategy": {"Fixed": 40}, "pad_id": 0}},
                     {"truncation": {"max_length": 2}, "padding": {"strategy": "BatchLongest"}}):
        path, p = convert(checkpoint(folder, dict(GOOD, **sections)), folder)
        tap.ok(p.returncode == 0 and "ignored" in p.stderr and "tokenizer.json" in p.stderr,
               "%s: %s" % (sorted(sections), p.stderr.strip()))
        got = generate(path, "-p", "Once upon a time, there was a long text", "--json")
        tap.ok(got.returncode == 0 and json.loads(got.stdout)["tokens"] ==
               json.loads(want.stdout)["tokens"] and "prompt" not in got.stderr,
               "and the prompt's tokens are those without it")


def embed(path, tokenizer):
    """The model file with other bytes of the same length as its tokenizer."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    offset, size = struct.unpack_from("<QQ", data, TOKENIZER_ENTRY + 8)
    assert len(tokenizer) == size
    data[offset:offset + size] = tokenizer
    struct.pack_into("<Q", data, TOKENIZER_ENTRY + 24, reader.xxh3(tokenizer))
    struct.pack_into("<Q", data, 504, reader.xxh3(data[:504]))
    with open(path, "wb") as file:
        file.write(data)


def test_token_ids(folder):
    """A model file with a tokenizer that this version refuses still takes token ids."""
    path, p = convert(checkpoint(folder, GOOD), folder)
    want = generate(path, "--tokens", "1,403,407")
    score = run(COORDINATOR, "score", "--model", path, "--tokens", "1,403,407")
    embed(path, reader.ModelFile(path).section("tokenizer").replace(b'"BPE"', b'"BPX"'))
    got = generate(path, "--tokens", "1,403,407", "--json")
    tap.ok(want.returncode == 0 and got.returncode == 0 and json.loads(got.stdout)["text"] is None
           and "BPX" in got.stderr, "token ids go on: " + got.stderr.strip())
    again = run(COORDINATOR, "score", "--model", path, "--tokens", "1,403,407")
    tap.ok(again.returncode == 0 and again.stdout == score.stdout, "in score, too")
    for command, option in (("generate", ["-p", "x"]), ("score", ["--file", __file__])):
        p = run(COORDINATOR, command, "--model", path, *option)
        tap.ok(p.returncode == 3 and "BPX" in p.stderr and path in p.stderr,
               "a text is refused: " + p.stderr.strip().split("\n")[-1])


def replace(pattern, content):
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def test_growth(folder):
    """Texts that double at each of many steps end in a sentence, at once."""
    steps = [replace("e", "ee")] * 28
    decoder = dict(GOOD["decoder"], decoders=steps + GOOD["decoder"]["decoders"])
    normalizer = {"type": "Sequence", "normalizers": [replace("a", "aa")] * 30}
    for name, tokenizer in (("decoder", dict(GOOD, decoder=decoder)),
                            ("normalizer", dict(GOOD, normalizer=normalizer))):
        path, p = convert(checkpoint(folder, tokenizer), folder)
        began = time.monotonic()
        p = generate(path, "-p", "Once upon a time")
        took = time.monotonic() - began
        tap.ok(p.returncode == 3 and name in p.stderr and len(p.stdout) < 1 << 20 and took < 20,
               "%s, %.1f s: %s" % (name, took, p.stderr.strip()))
    grown = dict(GOOD, normalizer={"type": "Sequence", "normalizers": [
        {"type": "NFKD"}, GOOD["normalizer"]] if GOOD.get("normalizer") else [{"type": "NFKD"}]})
    path, p = convert(checkpoint(folder, grown), folder)
    p = generate(path, "-p", "\ufdfa" * 12)
    tap.ok(p.returncode == 0, "what grows 11-fold by its Unicode form doesn't %s" % p.stderr.strip())


def test_one_beginning(folder):
    path, p = convert(checkpoint(folder, GOOD), folder, "--quant", "f32")
    texts = {}
    for name, text in (("plain", "Once upon a time"), ("marked", "<s>Once upon a time")):
        texts[name] = os.path.join(folder, name)
        with open(texts[name], "w") as file:
            file.write(text)
    scores = {name: run(COORDINATOR, "score", "--model", path, "--file", file).stdout
              for name, file in texts.items()}
    tap.ok(scores["plain"] and scores["plain"] == scores["marked"],
           "a text that begins with <s> gets no second one")
    bare = run(COORDINATOR, "score", "--model", path, "--file", texts["plain"], "--no-bos").stdout
    marked = run(COORDINATOR, "score", "--model", path, "--file", texts["marked"], "--no-bos").stdout
    count = [int(s.split()[1]) for s in (scores["plain"], bare)]
    tap.ok(count[1] == count[0] - 1 and marked == scores["plain"],
           "--no-bos puts none before it: %d tokens, %d without" % tuple(count))
    plain, marked, bare = (generate(path, "-p", prompt, "--json", *more) for prompt, more in (
        ("Once upon a time", ()), ("<s>Once upon a time", ()), ("Once upon a time", ("--no-bos",))))
    tokens = [json.loads(p.stdout)["tokens"] for p in (plain, marked)]
    tap.ok(tokens[0] == tokens[1] and bare.returncode == 0, "so does generate")
    scored = run(COORDINATOR, "score", "--model", path, "--file", texts["marked"]).stderr
    tap.ok(marked.stderr.count("no second one") == 1 and scored.count("no second one") == 1 and
           not plain.stderr and not bare.stderr, "and both say so: " + marked.stderr.strip())


def main():
    for test in (test_refused, test_ignored, test_token_ids, test_growth, test_one_beginning):
        with tempfile.TemporaryDirectory() as folder:
            test(folder)
    tap.done()


main()
