"""vflow-convert as a program: sharded and mixed checkpoints, what it ignores, signals, memory,
usage. Results are compared through the independent reader.
"""
import glob
import json
import os
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap
import vflow_reader as reader
from checkpoints import (SUFFIXES, checkpoint_name, safetensors_bytes, small_moe,
                         write_checkpoint)

CONVERT = tap.program("vflow-convert")
INSPECT = tap.program("vflow-inspect")


def run(*arguments, **more):
    return subprocess.run([CONVERT, *arguments], capture_output=True, timeout=120, **more)


def convert(folder, output, *options):
    p = run(folder, "-o", output, *options)
    if p.returncode:
        tap.note(p.stderr.decode())
        return None
    with open(output, "rb") as file:
        return file.read()


def test_shards(folder):
    config, tensors = small_moe(3)
    single, sharded = os.path.join(folder, "single"), os.path.join(folder, "sharded")
    write_checkpoint(single, config, tensors)
    write_checkpoint(sharded, config, {})
    names = sorted(tensors)
    weight_map = {}
    for part in range(3):
        name = "model-%05d-of-00003.safetensors" % (part + 1)
        with open(os.path.join(sharded, name), "wb") as file:
            file.write(safetensors_bytes({n: tensors[n] for n in names[part::3]}))
        weight_map.update({n: name for n in names[part::3]})
    with open(os.path.join(sharded, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {"total_size": 1}, "weight_map": weight_map}, file)
    a = convert(single, os.path.join(folder, "a.vflow"))
    b = convert(sharded, os.path.join(folder, "b.vflow"))
    tap.ok(a and a == b, "three files and an index give the same bytes as one file")


def test_dtypes(folder):
    """bf16 and f16 checkpoints are the f32 checkpoint of the same numbers."""
    config, tensors = small_moe(4)
    out = os.path.join(folder, "d.vflow")
    for dtype in ("BF16", "F16"):
        exact, stored = {}, {}
        for name, w in tensors.items():
            if dtype == "BF16":
                bits = (w.view(np.uint32) >> 16).astype(np.uint16)
                exact[name] = (bits.astype(np.uint32) << 16).view(np.float32)
                stored[name] = ("BF16", list(w.shape), bits.tobytes())
            else:
                exact[name] = w.astype(np.float16).astype(np.float32)
                stored[name] = w.astype(np.float16)
        results = []
        for name, set_ in (("exact", exact), ("stored", stored)):
            write_checkpoint(os.path.join(folder, name), config, set_)
            results.append(convert(os.path.join(folder, name), out, "--quant", "f32"))
        tap.ok(results[0] and results[0] == results[1], dtype + " weights are read exactly")


def test_edges(folder):
    """Values where quantisation has its corners: zeros, the tiniest, ties, the largest."""
    config, tensors = small_moe(5)
    q = "model.layers.0.self_attn.q_proj.weight"
    w = np.zeros((32, 32), np.float32)
    w[0] = np.linspace(-1, 1, 32)
    w[1] = 1e-9                                  # a scale that is zero in f16
    w[2] = np.arange(32) - 15.5                  # halves
    w[3] = -7 * np.float32(6e-8) * np.arange(32) / 31  # a scale among f16's subnormals
    w[4, 5] = 458000.0
    w[5] = np.where(np.arange(32) % 2, 7.0, -7.0)
    w[6] = np.arange(32) * np.float32(0.5)
    w[7, 0] = -1.0
    w[8] = np.float32(1e-40)                     # f32 subnormals
    tensors[q] = w
    write_checkpoint(os.path.join(folder, "edges"), config, tensors)
    for quant in ("q4", "q8"):
        path = os.path.join(folder, "edges.vflow")
        convert(os.path.join(folder, "edges"), path, "--quant", quant)
        file = reader.ModelFile(path)
        t = file.by_key["q", 0, 0]
        tap.ok(file.bytes_of(t) == reader.pack_matrix(w, t.quant), quant + " at its corners")


def test_ignored(folder):
    config, tensors = small_moe(6, tie_word_embeddings=True)
    plain = os.path.join(folder, "plain")
    write_checkpoint(plain, config, tensors)
    a = convert(plain, os.path.join(folder, "a.vflow"))
    embed = tensors["model.embed_tokens.weight"]
    more = {**tensors, "lm_head.weight": embed,
            "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
            "model.layers.1.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    write_checkpoint(plain, config, more)
    b = convert(plain, os.path.join(folder, "b.vflow"))
    tap.ok(a and a == b, "a second copy of the embedding and rotary frequencies are ignored")
    p = run(plain, "-o", os.path.join(folder, "b.vflow"), "-v")
    lines = p.stderr.decode()
    tap.ok(p.returncode == 0 and "lm_head.weight" in lines and "tokenizer.json" in lines,
           "-v says so, and that there is no tokenizer")
    more["lm_head.weight"] = embed + 1
    write_checkpoint(plain, config, more)
    p = run(plain, "-o", os.path.join(folder, "c.vflow"))
    tap.ok(p.returncode == 3 and b"lm_head.weight" in p.stderr and b"tie_word_embeddings"
           in p.stderr, "a head of its own in a tied model is refused: " + p.stderr.decode().strip())


def test_groups(folder):
    types = ["sliding_attention"] * 2 + ["full_attention"] + ["sliding_attention"] * 2
    config, tensors = small_moe(7, layers=5, layer_types=types, sliding_window=16)
    write_checkpoint(os.path.join(folder, "groups"), config, tensors)
    path = os.path.join(folder, "groups.vflow")
    convert(os.path.join(folder, "groups"), path)
    groups = [(g[0], g[1], g[2]) for g in reader.ModelFile(path).groups]
    tap.ok(groups == [(0, 2, 1), (2, 3, 0), (3, 5, 1)],
           "vertical groups follow the attention pattern: %s" % groups)


def test_formats(folder):
    config, tensors = small_moe(8)
    source = os.path.join(folder, "formats")
    write_checkpoint(source, config, tensors)
    for name, option, magic in (("m.vflow", [], b"VFLOW"), ("m.cflow", [], b"CFLOW"),
                                ("m.bin", [], b"VFLOW"), ("m.vflow", ["--format", "cflow"], b"CFLOW"),
                                ("m.cflow", ["--format=vflow"], b"VFLOW")):
        data = convert(source, os.path.join(folder, name), *option)
        tap.ok(data and data[:5] == magic, "%s %s is %s" % (name, option, magic.decode()))
    os.chdir(folder)
    tap.ok(run("formats", "-o", "here.vflow").returncode == 0 and os.path.exists("here.vflow"),
           "relative paths work")
    os.chdir("/")


def test_usage(folder):
    for arguments in ([], ["x"], ["x", "-o"], ["x", "-o", ""], ["x", "y", "-o", "z"],
                      ["x", "-o", "z", "--quant", "q5"], ["x", "-o", "z", "--format", "gguf"],
                      ["x", "-o", "z", "--no-such-option"]):
        p = run(*arguments)
        tap.ok(p.returncode == 2 and p.stderr.count(b"\n") == 1,
               "usage %s: %s" % (arguments, p.stderr.decode().strip()))
    for program in (CONVERT, INSPECT):
        p = subprocess.run([program, "--help"], capture_output=True, timeout=20)
        tap.ok(p.returncode == 0 and b"usage:" in p.stdout and not p.stderr, "--help")


def sparse_checkpoint(folder, vocab, d):
    """Zeros without disk space: an embedding of vocab x d f32 and a small tied model around."""
    config, tensors = small_moe(9, d=d, layers=1, experts=0, ffn=0, vocab=16,
                                tie_word_embeddings=True)
    config["vocab_size"] = vocab
    config["intermediate_size"] = 64
    for name, shape in (("gate", (64, d)), ("up", (64, d)), ("down", (d, 64))):
        tensors["model.layers.0." + SUFFIXES[name]] = np.zeros(shape, np.float32)
    del tensors["model.embed_tokens.weight"]
    os.makedirs(folder)
    header, at = {}, 0
    for name, w in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(w.shape), "data_offsets": [at, at + w.nbytes]}
        at += w.nbytes
    end = at + vocab * d * 4
    header["model.embed_tokens.weight"] = {"dtype": "F32", "shape": [vocab, d],
                                           "data_offsets": [at, end]}
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for w in tensors.values():
            file.write(w.tobytes())
        file.truncate(8 + len(text) + end)


def test_signals(folder):
    """Interrupted in the middle: no output, no temporary file, the shell's exit status."""
    source, out = os.path.join(folder, "sparse"), os.path.join(folder, "out")
    sparse_checkpoint(source, 2 ** 21, 128)
    os.makedirs(out)
    target = os.path.join(out, "m.vflow")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        p = subprocess.Popen([CONVERT, source, "-o", target], stderr=subprocess.PIPE)
        deadline = time.monotonic() + 30
        while not os.listdir(out) and time.monotonic() < deadline and p.poll() is None:
            time.sleep(0.002)
        began = os.listdir(out)
        p.send_signal(number)
        text = p.communicate(timeout=60)[1].decode()
        left = os.listdir(out)
        if number == signal.SIGKILL:
            good = p.returncode == -number and left == began and "m.vflow" not in left
            text = "only the part file is left"
            small = os.path.join(folder, "small")
            write_checkpoint(small, *small_moe(13))
            p = run(small, "-o", target)
            tap.ok(p.returncode == 0 and os.listdir(out) == ["m.vflow"] and
                   began[0] in p.stderr.decode(), "which the next conversion removes: "
                   + p.stderr.decode().strip())
        else:
            good = p.returncode == 128 + number and not left and text.count("\n") == 1
        tap.ok(good and "part" in began[0], "%s: %s" % (signal.Signals(number).name, text.strip()))
        for name in os.listdir(out):
            os.remove(os.path.join(out, name))

    def ignore():  # as nohup does
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    p = subprocess.Popen([CONVERT, source, "-o", target], stderr=subprocess.PIPE, preexec_fn=ignore)
    deadline = time.monotonic() + 30
    while not os.listdir(out) and time.monotonic() < deadline and p.poll() is None:
        time.sleep(0.002)
    p.send_signal(signal.SIGHUP)
    text = p.communicate(timeout=100)[1].decode()
    tap.ok(p.returncode == 0 and os.listdir(out) == ["m.vflow"],
           "a SIGHUP that nohup had ignored ends nothing %s" % text)
    os.remove(target)


def test_memory(folder):
    """A gigabyte of checkpoint with less than that of address space."""
    source = os.path.join(folder, "sparse")
    limit = 512 << 20
    if b"__asan" in open(CONVERT, "rb").read():
        tap.note("the memory limit isn't tried under a sanitizer")
        return

    def cap():
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    p = run(source, "-o", os.path.join(folder, "big.vflow"), preexec_fn=cap)
    size = os.path.getsize(os.path.join(source, "model.safetensors"))
    tap.ok(p.returncode == 0 and size > 1 << 30,
           "%.2f GiB convert in %d MiB of address space %s"
           % (size / 2 ** 30, limit >> 20, p.stderr.decode()))
    os.remove(os.path.join(folder, "big.vflow"))


def test_wide(folder):
    """Rows wider than a block: 40,000 columns in stripes of several reads."""
    config, tensors = small_moe(10, layers=1, experts=0, ffn=40001)
    source, path = os.path.join(folder, "wide"), os.path.join(folder, "wide.vflow")
    write_checkpoint(source, config, tensors)
    convert(source, path)
    file = reader.ModelFile(path)
    wrong = [t.key for t in file.tensors if not t.is_vector and file.bytes_of(t)
             != reader.pack_matrix(tensors[checkpoint_name(t.key)], t.quant)]
    tap.ok(not wrong, "40,001 columns agree to the byte %s" % wrong)


def test_full_disk(folder):
    """RLIMIT_FSIZE stands in for a full disk."""
    config, tensors = small_moe(11)
    source, out = os.path.join(folder, "full"), os.path.join(folder, "full.vflow")
    write_checkpoint(source, config, tensors)

    def cap():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))

    p = run(source, "-o", out, preexec_fn=cap)
    tap.ok(p.returncode == 1 and p.stderr.count(b"\n") == 1 and not glob.glob(out + "*"),
           "a file that can't grow: " + p.stderr.decode().strip())
    p = run(source, "-o", os.path.join(folder, "no", "dir", "m.vflow"))
    tap.ok(p.returncode == 1 and p.stderr.count(b"\n") == 1, p.stderr.decode().strip())
    os.mkdir(out)
    p = run(source, "-o", out)
    tap.ok(p.returncode == 2 and p.stderr.count(b"\n") == 1 and glob.glob(out + "*") == [out],
           "a directory in the place: " + p.stderr.decode().strip())
    with open("/dev/full", "wb") as full:
        p = subprocess.run([CONVERT, source, "-o", os.path.join(folder, "m.vflow")], stdout=full,
                           stderr=subprocess.PIPE, timeout=120)
        tap.ok(p.returncode == 1 and b"can't write to stdout" in p.stderr, "a full stdout: status 1")
        for options in ([], ["--json"]):
            p = subprocess.run([INSPECT, os.path.join(folder, "m.vflow"), *options], stdout=full,
                               stderr=subprocess.PIPE, timeout=120)
            tap.ok(p.returncode == 1 and b"can't write to stdout" in p.stderr,
                   "vflow-inspect %s too: %s" % (options, p.stderr.decode().strip()))


def test_places(folder):
    """Outputs that must not be replaced, and inputs that aren't files."""
    config, tensors = small_moe(12)
    source = os.path.join(folder, "in")
    write_checkpoint(source, config, tensors)
    before = {n: open(os.path.join(source, n), "rb").read() for n in os.listdir(source)}
    os.symlink("in/model.safetensors", os.path.join(folder, "link"))
    os.link(os.path.join(source, "config.json"), os.path.join(folder, "hard"))
    for output in ("in/model.safetensors", "in/config.json", "link", "hard"):
        p = run("in", "-o", output, cwd=folder)
        name = "config.json" if output in ("hard", "in/config.json") else "model.safetensors"
        words = ["-o " + output, "in/" + name]
        tap.ok(p.returncode == 2 and all(w in p.stderr.decode() for w in words),
               "the input isn't replaced: " + p.stderr.decode().strip())
    p = run(".", "-o", "model.safetensors", cwd=source)
    tap.ok(p.returncode == 2, "nor from inside: " + p.stderr.decode().strip())
    after = {n: open(os.path.join(source, n), "rb").read() for n in os.listdir(source)}
    tap.ok(before == after, "all of it is as it was")
    gguf = os.path.join(folder, "in.gguf")
    with open(gguf, "wb") as file:
        file.write(b"GGUF")
    p = run(gguf, "-o", gguf)
    tap.ok(p.returncode == 2 and os.path.getsize(gguf) == 4, p.stderr.decode().strip())

    fifo, sock = os.path.join(folder, "fifo"), os.path.join(folder, "sock")
    os.mkfifo(fifo)
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(sock)
        for path, kind, mode in ((fifo, b"a FIFO", stat.S_ISFIFO), (sock, b"a socket", stat.S_ISSOCK)):
            p = run(source, "-o", path)
            tap.ok(p.returncode == 2 and kind in p.stderr and mode(os.stat(path).st_mode),
                   "isn't replaced: " + p.stderr.decode().strip())
            p = run(path, "-o", os.path.join(folder, "m.vflow"))
            tap.ok(p.returncode == 3 and kind in p.stderr, "isn't read: " + p.stderr.decode().strip())
    p = subprocess.run([INSPECT, fifo], capture_output=True, timeout=20)
    tap.ok(p.returncode == 3 and b"a FIFO" in p.stderr, p.stderr.decode().strip())
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        kept = os.path.join(source, name)
        if os.path.exists(kept):
            os.rename(kept, kept + ".kept")
        os.mkfifo(kept)
        p = run(source, "-o", os.path.join(folder, "m.vflow"))
        tap.ok(p.returncode == 3 and (name + " is a FIFO").encode() in p.stderr,
               p.stderr.decode().strip())
        os.unlink(kept)
        if os.path.exists(kept + ".kept"):
            os.rename(kept + ".kept", kept)

    os.symlink("target.vflow", os.path.join(folder, "m.link"))
    p = run(source, "-o", os.path.join(folder, "m.link"))
    tap.ok(p.returncode == 0 and os.readlink(os.path.join(folder, "m.link")) == "target.vflow" and
           os.path.getsize(os.path.join(folder, "target.vflow")) > 4096,
           "a link as output: its target is written")
    tap.ok(not glob.glob(os.path.join(folder, "*part*")), "no temporary file is left")


def main():
    for test in (test_shards, test_dtypes, test_edges, test_ignored, test_groups, test_formats,
                 test_usage, test_wide, test_full_disk, test_places):
        with tempfile.TemporaryDirectory() as folder:
            test(folder)
    with tempfile.TemporaryDirectory() as folder:
        test_signals(folder)
        test_memory(folder)
    tap.done()


main()
