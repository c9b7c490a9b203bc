"""Random checkpoints: the tensors a config.json calls for, with values that make a lively model,
and a writer of safetensors files (sharded or not, types mixed).

Which tensors there are follows from the checkpoint format's description; a model's weights are
drawn so that logits are neither flat nor saturated.
"""

import json
import os
import struct

import numpy as np

from model_reference import parse_config

DTYPES = ("F32", "BF16", "F16")


def tensor_list(raw):
    """[(name, shape, role)] of a config.json. role: embed, head, norm, matrix, router, bias,
    coupling."""
    c = parse_config(raw)
    out = [("model.embed_tokens.weight", (c.vocab, c.hidden), "embed")]
    for flow in range(1, c.flows):
        out.append((f"model.embed_tokens_aux.{flow}.weight", (c.vocab, c.hidden), "embed"))
    for layer in range(c.layers):
        p = f"model.layers.{layer}."
        out += _attention_tensors(c, p)
        if c.ffn:
            out += _ffn_tensors(c, p + "mlp.{m}_proj.weight", c.ffn)
        if c.experts:
            out += _expert_tensors(c, p)
        for flow in range(1, c.flows):
            out += _flow_tensors(c, f"{p}flow.{flow}.")
    out.append(("model.norm.weight", (c.hidden,), "norm"))
    if not c.tied:
        out.append(("lm_head.weight", (c.vocab, c.hidden), "head"))
    return out


def _attention_tensors(c, p):
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    rows = {"q": q, "k": kv, "v": kv}
    out = [(f"{p}input_layernorm.weight", (c.hidden,), "norm")]
    out.append((f"{p}post_attention_layernorm.weight", (c.hidden,), "norm"))
    for m, n in rows.items():
        out.append((f"{p}self_attn.{m}_proj.weight", (n, c.hidden), "matrix"))
        if c.attention_bias:
            out.append((f"{p}self_attn.{m}_proj.bias", (n,), "bias"))
        if c.qk_norm and m != "v":
            size = n if c.qk_norm == "whole" else c.head_dim
            out.append((f"{p}self_attn.{m}_norm.weight", (size,), "norm"))
    out.append((f"{p}self_attn.o_proj.weight", (c.hidden, q), "matrix"))
    return out


def _ffn_tensors(c, pattern, size, names=("gate", "up", "down")):
    shapes = ((size, c.hidden), (size, c.hidden), (c.hidden, size))
    both = [(pattern.format(m=m), shape, "matrix") for m, shape in zip(names, shapes)]
    return both if c.gated else both[1:]


def _expert_tensors(c, p):
    router, pattern, names = {
        "pipeline_native": ("moe.router", "moe.experts.{e}.{{m}}_proj", ("gate", "up", "down")),
        "qwen3_moe": ("mlp.gate", "mlp.experts.{e}.{{m}}_proj", ("gate", "up", "down")),
        "olmoe": ("mlp.gate", "mlp.experts.{e}.{{m}}_proj", ("gate", "up", "down")),
        "mixtral": (
            "block_sparse_moe.gate",
            "block_sparse_moe.experts.{e}.{{m}}",
            ("w1", "w3", "w2"),
        ),
    }[c.kind]
    out = [(f"{p}{router}.weight", (c.experts, c.hidden), "router")]
    for e in range(c.experts):
        out += _ffn_tensors(c, p + pattern.format(e=e) + ".weight", c.expert_ffn, names)
    return out


def _flow_tensors(c, p):
    q, out = c.heads * c.head_dim, []
    if "query" in c.coupling:
        out.append((p + "query_coupling", (q,), "coupling"))
    for kind, dense, expert in (
        ("hidden", c.ffn, c.expert_ffn),
        ("output", c.hidden, c.hidden),
    ):
        if f"mlp_{kind}" in c.coupling:
            if c.ffn:
                out.append((f"{p}mlp_{kind}_coupling", (dense,), "coupling"))
            if c.experts:
                out.append((f"{p}moe_{kind}_coupling", (expert,), "coupling"))
    if c.flow_dense:
        out.append((p + "self_attn.q_proj.weight", (q, c.hidden), "matrix"))
        out.append((p + "self_attn.o_proj.weight", (c.hidden, q), "matrix"))
        if c.ffn:
            out += _ffn_tensors(c, p + "mlp.{m}_proj.weight", c.ffn)
    return out


def random_tensors(raw, rng):
    """{name: float64 array}."""
    tied = raw.get("tie_word_embeddings", False)
    offset = 1.0 if raw.get("rmsnorm_weight_offset") else 0.0
    tensors = {}
    for name, shape, role in tensor_list(raw):
        x, fan_in = rng.standard_normal(shape), max(shape[-1], 1)
        if role == "norm":
            x = 1 + 0.2 * x - offset
        elif role == "embed":
            x *= 2 / np.sqrt(fan_in) if tied else 1
        elif role in ("head", "router"):
            x *= 2 / np.sqrt(fan_in)
        elif role == "matrix":
            x *= 1 / np.sqrt(fan_in)
        else:
            x *= 0.4
        tensors[name] = x
    return tensors


# ------------------------------------------------------------------------------------------------
# Files
# ------------------------------------------------------------------------------------------------


def _encode(x, dtype):
    if dtype == "F32":
        return x.astype("<f4").tobytes()
    if dtype == "F16":
        return x.astype("<f2").tobytes()
    bits = np.ascontiguousarray(x, "<f4").view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def write_safetensors(path, tensors, dtypes, metadata=None):
    """tensors: {name: array}, in the order of the data; dtypes: {name: dtype}."""
    header, offset, blobs = {}, 0, []
    if metadata:
        header["__metadata__"] = metadata
    for name, x in tensors.items():
        blob = _encode(x, dtypes[name])
        blobs.append(blob)
        header[name] = {
            "dtype": dtypes[name],
            "shape": list(x.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def write_checkpoint(directory, raw, tensors, rng=None):
    """Writes config.json and the tensors. Without rng: one F32 file; with rng: types, order and
    shards drawn from it."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(raw, f, indent=1)
    names = list(tensors)
    if rng is None:
        path = os.path.join(directory, "model.safetensors")
        write_safetensors(path, tensors, dict.fromkeys(names, "F32"))
        return
    style = rng.choice(["F32", "BF16", "F16", "mixed"])
    dtypes = {n: str(rng.choice(DTYPES)) if style == "mixed" else str(style) for n in names}
    rng.shuffle(names)
    shards = int(rng.integers(2, 5)) if rng.random() < 0.4 else 1
    if shards == 1:
        path = os.path.join(directory, "model.safetensors")
        write_safetensors(path, {n: tensors[n] for n in names}, dtypes, {"format": "pt"})
        return
    where = {}
    for i in range(shards):
        part = names[i::shards]
        file_name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        path = os.path.join(directory, file_name)
        write_safetensors(path, {n: tensors[n] for n in part}, dtypes, {"format": "pt"})
        where.update(dict.fromkeys(part, file_name))
    total = sum(x.size * (4 if dtypes[n] == "F32" else 2) for n, x in tensors.items())
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": where}, f)
