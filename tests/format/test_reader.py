"""The C writer against the independent reader: every byte of every section, for real models.

From the safetensors file the reader's own packing gives each tensor's bytes; they must be the
file's. What the tables say must be what docs/FORMAT.md says, order of the streams included.
"""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap
import vflow_reader as reader
from checkpoints import checkpoint_name, expert_name, read_safetensors

CONVERT = tap.program("vflow-convert")
INSPECT = tap.program("vflow-inspect")
SHARED = tap.shared_dir()

REAL = ["models/stories260k", "models/tiny_arch2_4"]
MORE = [tap.dual_mixture_dir(), "golden/triple_flow", "golden/dual_flow_nanogpt",
        "golden/dual_flow_specific_dense", "golden/parallel_sqrt2", "golden/arch5_fixed_point"]


def convert(model, output, quant):
    subprocess.run([CONVERT, os.path.join(SHARED, model), "-o", output, "--quant", quant],
                   check=True, stdout=subprocess.DEVNULL, timeout=60)


def wrong_tensors(file, source):
    """Tensors whose bytes differ from what the reader packs out of the checkpoint."""
    wrong = []
    for t in file.tensors:
        w = source[checkpoint_name(t.key)]
        packed = w.astype("<f4").tobytes() if t.is_vector else reader.pack_matrix(w, t.quant)
        if packed != file.bytes_of(t):
            wrong.append(t.key)
    return wrong


def wrong_experts(file, source):
    wrong = []
    experts = file.config["num_experts"]
    for i in range(len(file.experts)):
        layer, expert = divmod(i, experts)
        parts, size = file.expert_parts()
        record = bytearray(size)
        for name, at, rows, cols in parts:
            w = source[expert_name(layer, expert, name)]
            assert w.shape == (rows, cols)
            packed = reader.pack_matrix(w, file.quant)
            record[at:at + len(packed)] = packed
        if bytes(record) != file.expert(layer, expert):
            wrong.append((layer, expert))
    return wrong


def stream_order(file):
    """(key, or layer and expert) by offset, as the weights follow each other."""
    items = [(t.offset, t.key) for t in file.tensors if not t.is_vector]
    experts = file.config["num_experts"]
    items += [(e[0], ("expert",) + divmod(i, experts)) for i, e in enumerate(file.experts)]
    return [key for _, key in sorted(items)]


def documented_order(file):
    c = file.config
    layers, flows = range(c["num_hidden_layers"]), range(c["num_flows"])
    present = set(file.by_key)

    def stage(names, layer):
        keys = [(name, layer, flow) for flow in flows for name in names]
        return [key for key in keys if key in present]

    def experts(layer):
        return [("expert", layer, e) for e in range(c["num_experts"])]

    attention, dense = ("q", "k", "v", "o"), ("gate", "up", "down", "router")
    order = [("embed", None, flow) for flow in flows]
    if file.format == "cflow":
        for layer in layers:
            order += stage(attention, layer) + stage(dense, layer) + experts(layer)
    else:
        for begin, end, *_ in file.groups:
            for names in (attention, dense):
                for layer in range(begin, end):
                    order += stage(names, layer)
    order += [key for key in [("head", None, 0)] if key in present]
    if file.format == "vflow":
        for layer in layers:
            order += experts(layer)
    return order


def check(model, suffix, quant, folder):
    source = read_safetensors(os.path.join(SHARED, model, "model.safetensors"))
    path = os.path.join(folder, "model." + suffix)
    convert(model, path, quant)
    label = "%s as %s %s: " % (os.path.basename(model), suffix, quant)
    try:
        file = reader.ModelFile(path)
    except ValueError as fault:
        tap.ok(False, label + "the reader accepts the file (%s)" % fault)
        return
    tap.ok(file.format == suffix and reader.QUANTS[file.quant][0] == quant,
           label + "the reader accepts the file")
    wrong = wrong_tensors(file, source) + wrong_experts(file, source)
    tap.ok(not wrong, label + "%d tensors and %d experts agree to the byte %s"
           % (len(file.tensors), len(file.experts), wrong[:4] or ""))
    tap.ok(stream_order(file) == documented_order(file), label + "the documented order")
    tokenizer = os.path.join(SHARED, model, "tokenizer.json")
    text = open(tokenizer, "rb").read() if os.path.exists(tokenizer) else b""
    tap.ok(file.tokenizer == text, label + "the tokenizer is embedded as it is")
    check_weights(file, source, label)
    check_inspect(path, file, label)


def check_weights(file, source, label):
    """Unpacking gives weights as near as the quantisation allows."""
    worst = 0.0
    bound = {"f32": 0.0, "f16": 2.0 ** -11, "q8": 0.5 / 127 + 2.0 ** -11, "q4": 0.5 / 7 + 2.0 ** -10}
    for t in file.tensors:
        w = source[checkpoint_name(t.key)].reshape(t.rows, t.cols)
        error = np.abs(file.weights(t).reshape(t.rows, t.cols) - w).max(axis=1)
        largest = np.maximum(np.abs(w).max(axis=1), 1e-4)
        relative = float((error / largest).max())
        if not relative <= bound[reader.QUANTS[t.quant][0]]:
            worst = max(worst, relative) if relative == relative else float("inf")
    tap.ok(worst == 0.0, label + "unpacked weights are within the rounding")


def check_inspect(path, file, label):
    out = subprocess.run([INSPECT, path, "--json", "--tiles", "--verify"], capture_output=True,
                         timeout=60)
    report = json.loads(out.stdout)
    same = (out.returncode == 0 and not out.stderr and report["verify"]["bad"] == 0
            and report["fingerprint"] == "%016x" % file.fingerprint
            and report["config"] == file.config
            and len(report["tiles"]) == file.tile_count
            and [(t["offset"], t["bytes"], t["xxh3"]) for t in report["tensors"]]
            == [(t.offset, t.bytes, "%016x" % t.xxh3) for t in file.tensors]
            and [(t["row"], t["col"], t["rows"], t["cols"], int(t["xxh3_low"], 16))
                 for t in report["tiles"]] == [tuple(int(x) for x in t) for t in file.tiles])
    tap.ok(same, label + "vflow-inspect --json --tiles --verify says the same")


def main():
    with tempfile.TemporaryDirectory() as folder:
        for model in REAL:
            for suffix in ("vflow", "cflow"):
                for quant in ("q4", "q8", "f16", "f32"):
                    check(model, suffix, quant, folder)
        for model in MORE:
            check(model, "vflow", "q4", folder)
            check(model, "cflow", "q8", folder)
        a, b = os.path.join(folder, "a.vflow"), os.path.join(folder, "b.vflow")
        convert(REAL[1], a, "q4")
        convert(REAL[1], b, "q4")
        with open(a, "rb") as one, open(b, "rb") as two:
            tap.ok(one.read() == two.read(), "two conversions give the same bytes")
        count = json.loads(subprocess.run([INSPECT, a, "--json"], capture_output=True, check=True,
                                          timeout=60).stdout)["parameters"]
        source = read_safetensors(os.path.join(SHARED, REAL[1], "model.safetensors"))
        tap.ok(count == sum(w.size for w in source.values()), "the parameter count is exact")
    tap.done()


main()
