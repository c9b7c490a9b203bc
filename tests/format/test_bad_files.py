"""Truncated, bit-flipped and absurd input files through the real programs.

Every case must end with exit status 3 and exactly one line on stderr that names the file, and
leave the output directory as it was: no output file, no temporary file. Bad files are made from
good ones, with seeded random numbers; absurd numbers in model files get their checksums computed
anew, so that the checks behind the checksums are reached.
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap
import vflow_reader as reader
from checkpoints import safetensors_bytes, small_moe, write_checkpoint

CONVERT = tap.program("vflow-convert")
INSPECT = tap.program("vflow-inspect")
SHARED = tap.shared_dir()
RANDOM = random.Random(20260824)


def check_exit(command, label, name, folder):
    """Runs a program on a bad file; folder is where output would appear."""
    before = sorted(os.listdir(folder))
    p = subprocess.run(command, capture_output=True, timeout=60)
    text = p.stderr.decode("utf-8", "replace")
    lines = text.splitlines()
    good = (p.returncode == 3 and len(lines) == 1 and text.endswith("\n") and name in text
            and sorted(os.listdir(folder)) == before)
    detail = lines[0] if lines else "no message"
    if not tap.ok(good, "%s: %s" % (label, detail)):
        tap.note("status %d, %d lines, %s" % (p.returncode, len(lines), sorted(os.listdir(folder))))
        for line in lines[:30]:
            tap.note(line)


class Checkpoint:
    """A good checkpoint whose files are replaced one at a time."""

    def __init__(self, folder):
        self.dir = os.path.join(folder, "checkpoint")
        self.out = os.path.join(folder, "out")
        os.makedirs(self.out)
        self.config, self.tensors = small_moe(1)
        self.tokenizer = '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}'
        write_checkpoint(self.dir, self.config, self.tensors, self.tokenizer)

    def path(self, name):
        return os.path.join(self.dir, name)

    def command(self):
        return [CONVERT, self.dir, "-o", os.path.join(self.out, "model.vflow")]

    def check(self, name, data, label, mention=None):
        """The checkpoint with file `name` replaced by data (None: removed)."""
        path = self.path(name)
        old = None
        if os.path.exists(path):
            with open(path, "rb") as file:
                old = file.read()
            os.remove(path)
        if data is not None:
            with open(path, "wb") as file:
                file.write(data if isinstance(data, bytes) else data.encode())
        check_exit(self.command(), label, mention or name, self.out)
        if os.path.exists(path):
            os.remove(path)
        if old is not None:
            with open(path, "wb") as file:
                file.write(old)

    def check_good(self, label):
        p = subprocess.run(self.command(), capture_output=True, timeout=60)
        tap.ok(p.returncode == 0 and not p.stderr, label + p.stderr.decode())
        os.remove(os.path.join(self.out, "model.vflow"))


# ---- safetensors ----

def safetensors_shared(c):
    folder = os.path.join(SHARED, "malformed", "safetensors")
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            with open(os.path.join(folder, name), "rb") as file:
                c.check("model.safetensors", file.read(), "safetensors " + name[:-12],
                        c.dir)


def safetensors_generated(c):
    good = safetensors_bytes(c.tensors)
    header = struct.unpack_from("<Q", good)[0]
    name = "model.safetensors"
    for cut in (0, 1, 7, 8, 9, 8 + header // 2, 8 + header - 1, 8 + header, 8 + header + 1,
                len(good) // 2, len(good) - 4, len(good) - 1):
        c.check(name, good[:cut], "safetensors cut at byte %d of %d" % (cut, len(good)))
    c.check(name, good + b"\0", "safetensors with a byte more")
    c.check(name, None, "no safetensors")
    for _ in range(40):
        at, bit = RANDOM.randrange(8 + header), RANDOM.randrange(8)
        bad = bytearray(good)
        bad[at] ^= 1 << bit
        c.check(name, bytes(bad), "safetensors with bit %d of byte %d flipped" % (bit, at), c.dir)
    for length in (0, 2 ** 31, 2 ** 32 + header, 2 ** 63, 2 ** 64 - 1, 100000001):
        c.check(name, struct.pack("<Q", length) + good[8:], "safetensors header length %d" % length)


def changed_tensor(tensors, name, value):
    return safetensors_bytes({**tensors, name: value})


def safetensors_tensors(c):
    """Files that are good safetensors, but not of this model."""
    q, name = "model.layers.1.self_attn.q_proj.weight", "model.safetensors"
    w = c.tensors[q]
    without = {k: v for k, v in c.tensors.items() if k != q}
    c.check(name, safetensors_bytes(without), "a tensor missing", q)
    for shape in ((16, 64), (1024,), (32, 32, 1), (32, 16), ()):
        n = int(np.prod(shape))
        c.check(name, changed_tensor(c.tensors, q, w.ravel()[:n].reshape(shape)),
                "a tensor of shape %s" % (shape,), q)
    c.check(name, changed_tensor(c.tensors, "model.extra", w), "a tensor more", "model.extra")
    c.check(name, changed_tensor(c.tensors, "bad\nname\x1b[31m", w), "a tensor with control "
            "characters in its name", "bad?name")
    c.check(name, changed_tensor(c.tensors, "x" * 5000, w), "a tensor with a long name", "xxx...")
    for dtype, size in (("I32", 4), ("F64", 8), ("F8_E4M3", 1), ("U16", 2)):
        c.check(name, changed_tensor(c.tensors, q, (dtype, [32, 32], b"\0" * 1024 * size)),
                "a tensor of dtype " + dtype, dtype)
    for value in (np.nan, np.inf, -np.inf):
        bad = w.copy()
        bad[31, 7] = value
        c.check(name, changed_tensor(c.tensors, q, bad), "a weight that is %s" % value,
                "row 31, column 7")
    huge = w.copy()
    huge[3, 3] = 1e30
    c.check(name, changed_tensor(c.tensors, q, huge), "a weight of 1e30 in q4", "row 3, column 3")
    nan_norm = np.ones(32, np.float32)
    nan_norm[5] = np.nan
    c.check(name, changed_tensor(c.tensors, "model.norm.weight", nan_norm), "NaN in a norm",
            "column 5")
    bf16 = ("BF16", [32, 32], b"\xc0\x7f" * 1024)
    c.check(name, changed_tensor(c.tensors, q, bf16), "NaN in bf16", "NaN")
    f16 = np.full((32, 32), np.inf, np.float16)
    c.check(name, changed_tensor(c.tensors, q, f16), "infinity in f16", "infinity")


def index_files(c):
    name = "model.safetensors.index.json"
    everything = {t: "model.safetensors" for t in c.tensors}

    def index(weight_map):
        return json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})

    q = "model.layers.1.self_attn.q_proj.weight"
    for value, label in (("../model.safetensors", "a path upwards"), ("/etc/passwd", "a full path"),
                         ("model.bin", "another kind of file"), (".safetensors", "no name"),
                         ("", "an empty name"), (7, "a number"), (None, "null"),
                         ("x\ny.safetensors", "a line break")):
        c.check(name, index({**everything, q: value}), "index with " + label, c.dir)
    c.check(name, index({**everything, "no.such.tensor": "model.safetensors"}),
            "index with a tensor that isn't there", "no.such.tensor")
    c.check(name, index({**everything, q: "other.safetensors"}), "index with a missing file",
            "other.safetensors")
    c.check(name, index({}), "an empty index")
    c.check(name, json.dumps({"weight_map": []}), "index whose weight_map is a list")
    c.check(name, "{}", "index without weight_map")
    c.check(name, index(everything)[:-40], "a truncated index")
    c.check(name, b"\xff\xfe", "index that isn't UTF-8")
    with open(c.path("second.safetensors"), "wb") as file:
        file.write(safetensors_bytes({q: c.tensors[q]}))
    c.check(name, index({**everything, q: "second.safetensors"}), "a tensor in two files", q)
    os.remove(c.path("second.safetensors"))


# ---- config.json and tokenizer.json ----

def config_files(c):
    name = "config.json"
    text = json.dumps(c.config)
    for cut in (0, 1, len(text) // 4, len(text) // 2, len(text) - 1):
        c.check(name, text[:cut], "config cut at byte %d" % cut)
    c.check(name, None, "no config")
    c.check(name, text + "x", "config with a byte more")
    c.check(name, b"\xff" + text.encode(), "config that isn't UTF-8")
    c.check(name, "[" * 100000, "config of 100,000 brackets")
    c.check(name, "[]", "config that is a list")
    c.check(name, "{}", "an empty config")
    c.check(name, text[:-1] + ', "vocab_size": 48}', "config with a key twice")
    absurd = [("model_type", "gpt17"), ("model_type", 3), ("combine_style", "sideways"),
              ("hidden_act", "tanh3"), ("rope_scaling", {"type": "spiral", "factor": 2.0})]
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                "max_position_embeddings", "num_key_value_heads", "head_dim"):
        absurd += [(key, v) for v in (0, -1, 2 ** 40, 2 ** 63 - 1, 1.5, "many")]
    for key in ("num_experts", "intermediate_size", "moe_intermediate_size", "dense_delay",
                "expert_delay", "num_experts_per_tok"):
        absurd += [(key, v) for v in (-1, 2 ** 31, 2 ** 63 - 1, [2])]
    absurd += [("num_experts_per_tok", 3), ("num_key_value_heads", 3), ("rms_norm_eps", -1.0),
               ("rope_theta", 0), ("rope_theta", "big"), ("partial_rotary_factor", 1.5),
               ("layer_types", ["full_attention"]), ("layer_types", ["a", "b"]),
               ("num_flows", 0), ("num_flows", 1000), ("tie_word_embeddings", "yes"),
               ("hidden_size", 64), ("num_hidden_layers", 3), ("vocab_size", 2 ** 31),
               ("num_experts", 60000), ("no_such_key_of_the_architecture", 1)]
    for key, value in absurd[:-1]:
        c.check(name, json.dumps({**c.config, key: value}),
                "config with %s %s" % (key, json.dumps(value)), c.dir)


def tokenizer_files(c):
    name = "tokenizer.json"
    c.check(name, c.tokenizer[:-1], "a truncated tokenizer")
    c.check(name, "", "an empty tokenizer")
    c.check(name, b'{"a": "\xff"}', "tokenizer that isn't UTF-8")
    c.check(name, "[1]", "tokenizer that is a list")
    c.check(name, "[" * 100000, "tokenizer of 100,000 brackets")


# ---- model files ----

class Patch:
    """A model file with numbers changed and checksums made right again."""

    def __init__(self, data):
        self.data = bytearray(data)

    def section(self, name):
        at = 64 + 32 * reader.SECTIONS.index(name)
        return struct.unpack_from("<QQ", self.data, at + 8)

    def put(self, offset, form, value):
        struct.pack_into(form, self.data, offset, value)
        return self

    def put_in(self, section, offset, form, value):
        return self.put(self.section(section)[0] + offset, form, value)

    def sealed(self):
        for i, name in enumerate(reader.SECTIONS):
            offset, size = self.section(name)
            if name not in ("stream", "bank") and offset + size <= len(self.data):
                struct.pack_into("<Q", self.data, 64 + 32 * i + 24,
                                 reader.xxh3(self.data[offset:offset + size]))
        struct.pack_into("<Q", self.data, 504, reader.xxh3(self.data[:504]))
        return bytes(self.data)


class Model:
    def __init__(self, path, data):
        self.path = path
        self.folder = os.path.dirname(path)
        self.good = data

    def check(self, data, label, mention=None):
        with open(self.path, "wb") as file:
            file.write(data)
        check_exit([INSPECT, self.path, "--verify"], label, mention or self.path, self.folder)


def section_ends(model):
    patch = Patch(model.good)
    return [sum(patch.section(name)) for name in reader.SECTIONS]


def model_cuts(m, label):
    cuts = {0, 1, 8, 511, 512, 513, len(m.good) - 1}
    for end in section_ends(m):
        cuts |= {end - 1, end, end + 1}
    for cut in sorted(cut for cut in cuts if cut < len(m.good)):
        m.check(m.good[:cut], "%s cut at byte %d of %d" % (label, cut, len(m.good)))
    m.check(m.good + b"\0", label + " with a byte more")


def model_flips(m, label):
    """Any bit of the file: opening or --verify finds it."""
    offset, size = Patch(m.good).section("vectors")
    tables = [RANDOM.randrange(offset + size) for _ in range(40)]
    weights = [RANDOM.randrange(len(m.good)) for _ in range(40)]
    fixed = [0, 8, 16, 32, 36, 63, 64, 351, 352, 503, 504, 511]
    for at in fixed + tables + weights:
        bit = RANDOM.randrange(8)
        bad = bytearray(m.good)
        bad[at] ^= 1 << bit
        m.check(bytes(bad), "%s with bit %d of byte %d flipped" % (label, bit, at))


def absurd_header(m, label):
    for offset, form, values in (
            (8, "<I", (0, 5, 7, 2 ** 32 - 1)), (12, "<I", (0, 511, 4096)),
            (16, "<Q", (0, 1, 2 ** 63, 2 ** 64 - 1)), (24, "<H", (0, 64)), (26, "<H", (512,)),
            (28, "<H", (8,)), (30, "<H", (64,)), (32, "B", (4, 255)), (33, "B", (1,)),
            (36, "<I", (0, 10)), (40, "<Q", (0, 2 ** 60)), (48, "<Q", (0, 4096 * 1000)),
            (56, "<Q", (1,)), (352, "B", (1,)), (503, "B", (1,))):
        for value in values:
            m.check(Patch(m.good).put(offset, form, value).sealed(),
                    "%s with header number at %d made %d" % (label, offset, value))
    for i, name in enumerate(reader.SECTIONS):
        at = 64 + 32 * i
        for offset, form, value in ((0, "<I", 99), (4, "<I", 1), (8, "<Q", 2 ** 64 - 64),
                                    (8, "<Q", 0), (16, "<Q", 2 ** 64 - 1), (16, "<Q", 2 ** 62)):
            m.check(Patch(m.good).put(at + offset, form, value).sealed(),
                    "%s with section %s number at %d made %d" % (label, name, offset, value))
    m.check(Patch(m.good).put(64 + 32 * 6 + 24, "<Q", 1).sealed(),
            label + " with a checksum on the weight stream")


def absurd_tables(m, label):
    file = reader.ModelFile(m.path)
    q = next(i for i, t in enumerate(file.tensors) if t.key == ("q", 1, 0))
    k = next(i for i, t in enumerate(file.tensors) if t.key == ("k", 1, 0))
    norm = next(i for i, t in enumerate(file.tensors) if t.is_vector)
    for offset, form, value in (
            (0, "<H", 6), (0, "<H", 26), (0, "<H", 65535), (0, "<H", 18), (2, "B", 0),
            (2, "B", 200), (3, "B", 1), (3, "B", 2), (4, "<I", 0), (4, "<I", 2),
            (4, "<I", 2 ** 32 - 1), (8, "<I", 1), (12, "<I", 0), (12, "<I", 2 ** 32 - 1),
            (16, "<I", 0), (16, "<I", 31), (20, "<I", 1), (24, "<Q", 0),
            (24, "<Q", file.tensors[q].offset + 8), (24, "<Q", file.tensors[k].offset),
            (24, "<Q", 2 ** 64 - 64), (24, "<Q", file.sections["bank"][0]), (32, "<Q", 0),
            (32, "<Q", 2 ** 64 - 1), (40, "<Q", 1), (48, "<Q", 0), (48, "<Q", 2 ** 64 - 1),
            (56, "<Q", 0), (56, "<Q", 2 ** 64 - 1)):
        m.check(Patch(m.good).put_in("tensors", 64 * q + offset, form, value).sealed(),
                "%s with q_proj's table number at %d made %d" % (label, offset, value))
    m.check(Patch(m.good).put_in("tensors", 64 * norm + 24, "<Q", file.tensors[q].offset).sealed(),
            label + " with a vector among the matrices")
    for offset, form, value in ((0, "<I", 1), (4, "<I", 0), (4, "<I", 9), (8, "<I", 1),
                                (8, "<I", 2), (12, "<I", 1), (16, "<Q", 0), (16, "<Q", 2 ** 63),
                                (24, "<Q", 0), (24, "<Q", 2 ** 64 - 1), (32, "<Q", 4096),
                                (32, "<Q", file.groups[0][4]), (40, "<Q", 0),
                                (40, "<Q", 2 ** 63)):
        m.check(Patch(m.good).put_in("groups", offset, form, value).sealed(),
                "%s with group number at %d made %d" % (label, offset, value))
    for offset, form, value in ((0, "<Q", 0), (0, "<Q", 2 ** 64 - 4096),
                                (0, "<Q", file.experts[1][0]), (0, "<Q", file.experts[0][0] + 64),
                                (8, "<Q", 0), (8, "<Q", 4096 * 2 ** 40), (16, "<Q", 5)):
        m.check(Patch(m.good).put_in("experts", offset, form, value).sealed(),
                "%s with expert number at %d made %d" % (label, offset, value))
    for offset, form, value in ((0, "<I", 128), (4, "<I", 256), (8, "<H", 0), (10, "<H", 65535),
                                (12, "<I", 0)):
        bad = Patch(m.good).put_in("tiles", offset, form, value).sealed()
        if offset < 12:
            m.check(bad, "%s with tile number at %d made %d" % (label, offset, value))
    patch = Patch(m.good)
    patch.data[sum(patch.section("tokenizer")) - 1] = 0xFF
    m.check(patch.sealed(), label + " with a tokenizer that isn't UTF-8", "UTF-8")


def absurd_configs(m, label):
    """The embedded config replaced by one of the same length."""
    file = reader.ModelFile(m.path)
    old = file.section("config")
    for find, replace in ((b'"hidden_size":32', b'"hidden_size":48'),
                          (b'"hidden_size":32', b'"hidden_size":-2'),
                          (b'"num_hidden_layers":2', b'"num_hidden_layers":3'),
                          (b'"num_hidden_layers":2', b'"num_hidden_layers":0'),
                          (b'"num_experts":2', b'"num_experts":3'),
                          (b'"num_experts":2', b'"num_experts":1'),
                          (b'"vocab_size":48', b'"vocab_size":47'),
                          (b'"vocab_size":48', b'"vocab_size":64'),
                          (b'"intermediate_size":32', b'"intermediate_size":64'),
                          (b'"moe_intermediate_size":32', b'"moe_intermediate_size":96'),
                          (b'"tie_word_embeddings":false', b'"tie_word_embeddings":true '),
                          (b'"attention_bias":false', b'"attention_bias":true '),
                          (b'"num_flows":1', b'"num_flows":4'), (b'{"', b'["'),
                          (b'"model_type":"pipeline_native"', b'"model_type":"pipeline_nature"'),
                          (b'"vocab_size"', b'"hidden_act"')):
        assert old.count(find) >= 1, find
        new = old.replace(find, replace, 1)
        assert len(new) == len(old)
        patch = Patch(m.good)
        offset = patch.section("config")[0]
        patch.data[offset:offset + len(old)] = new
        m.check(patch.sealed(), "%s with config %s" % (label, replace.decode()))


def model_files(c, folder):
    os.makedirs(folder)
    for suffix in ("vflow", "cflow"):
        path = os.path.join(folder, "model." + suffix)
        subprocess.run([CONVERT, c.dir, "-o", path], check=True, stdout=subprocess.DEVNULL,
                       timeout=60)
        with open(path, "rb") as file:
            m = Model(path, file.read())
        absurd_tables(m, suffix)
        with open(path, "wb") as file:
            file.write(m.good)
        absurd_configs(m, suffix)
        absurd_header(m, suffix)
        model_cuts(m, suffix)
        model_flips(m, suffix)
        with open(path, "wb") as file:
            file.write(m.good)
        p = subprocess.run([INSPECT, path, "--verify"], capture_output=True, timeout=60)
        tap.ok(p.returncode == 0 and not p.stderr, "the good %s passes" % suffix)
        os.remove(path)
    for label, data in (("an empty file", b""), ("a text file", b"hello\n" * 200),
                        ("zeros", bytes(100000)), ("a safetensors file", safetensors_bytes(
                            c.tensors))):
        Model(os.path.join(folder, "x.vflow"), b"").check(data, "inspect of " + label)
    os.remove(os.path.join(folder, "x.vflow"))
    check_exit([INSPECT, folder], "inspect of a directory", folder, folder)
    check_exit([INSPECT, os.path.join(folder, "none")], "inspect of nothing", "none", folder)
    check_exit([CONVERT, os.path.join(folder, "none"), "-o", os.path.join(folder, "m.vflow")],
               "convert of nothing", "none", folder)


def main():
    with tempfile.TemporaryDirectory() as folder:
        c = Checkpoint(folder)
        c.check_good("the good checkpoint converts")
        safetensors_shared(c)
        safetensors_generated(c)
        safetensors_tensors(c)
        index_files(c)
        config_files(c)
        tokenizer_files(c)
        model_files(c, os.path.join(folder, "models"))
        c.check_good("the good checkpoint still converts")
    tap.done()


main()
