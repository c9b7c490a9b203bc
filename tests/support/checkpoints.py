"""Reading and writing safetensors checkpoints in the tests, apart from the code under test."""
import json
import os
import struct

import numpy as np

DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "F64": "<f8"}
SUFFIXES = {
    "attn_norm": "input_layernorm.weight", "ffn_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.weight", "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight", "o": "self_attn.o_proj.weight",
    "q_norm": "self_attn.q_norm.weight", "k_norm": "self_attn.k_norm.weight",
    "q_bias": "self_attn.q_proj.bias", "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias", "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight", "down": "mlp.down_proj.weight",
    "router": "moe.router.weight",
}


def checkpoint_name(key):
    """The pipeline_native (and llama) name of a reader's tensor key."""
    name, layer, flow = key
    if name == "embed":
        return "model.embed_tokens_aux.%d.weight" % flow if flow else "model.embed_tokens.weight"
    if layer is None:
        return {"head": "lm_head.weight", "final_norm": "model.norm.weight"}[name]
    prefix = "model.layers.%d." % layer + ("flow.%d." % flow if flow else "")
    return prefix + SUFFIXES.get(name, name)


def expert_name(layer, expert, part):
    return "model.layers.%d.moe.experts.%d.%s_proj.weight" % (layer, expert, part)


def to_f32(raw, dtype):
    if dtype == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32)


def read_safetensors(path):
    """{name: f32 array}"""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack_from("<Q", data)[0]
    tensors = {}
    for name, info in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        raw = np.frombuffer(data[8 + size + begin:8 + size + end], DTYPES[info["dtype"]])
        tensors[name] = to_f32(raw, info["dtype"]).reshape(info["shape"])
    return tensors


def safetensors_bytes(tensors):
    """{name: array, or (dtype, shape, bytes)} -> a file's bytes. f4 and f2 arrays keep their type."""
    header, blobs, at = {}, [], 0
    for name, value in tensors.items():
        if isinstance(value, tuple):
            dtype, shape, blob = value
        else:
            dtype = {"f4": "F32", "f2": "F16"}[value.dtype.str[1:]]
            shape, blob = list(value.shape), value.tobytes()
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)


def write_checkpoint(directory, config, tensors, tokenizer=None):
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump(config, file)
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(safetensors_bytes(tensors))
    if tokenizer is not None:
        with open(os.path.join(directory, "tokenizer.json"), "w") as file:
            file.write(tokenizer)


def small_moe(seed, d=32, layers=2, experts=2, fe=32, ffn=32, vocab=48, **more):
    """A little pipeline_native checkpoint with random weights: (config, tensors)."""
    rng = np.random.default_rng(seed)
    config = {"model_type": "pipeline_native", "combine_style": "delayed_sum", "dense_delay": 0,
              "expert_delay": 0, "hidden_size": d, "num_hidden_layers": layers,
              "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
              "intermediate_size": ffn, "num_experts": experts, "num_experts_per_tok": 1,
              "moe_intermediate_size": fe, "vocab_size": vocab, "hidden_act": "silu",
              "max_position_embeddings": 64}
    config.update(more)
    tensors = {}

    def add(name, *shape):
        tensors[name] = rng.standard_normal(shape).astype(np.float32)

    q, kv = 32, 16
    add("model.embed_tokens.weight", vocab, d)
    add("lm_head.weight", vocab, d)
    add("model.norm.weight", d)
    for layer in range(layers):
        prefix = "model.layers.%d." % layer
        for name, shape in (("attn_norm", (d,)), ("ffn_norm", (d,)), ("q", (q, d)), ("k", (kv, d)),
                            ("v", (kv, d)), ("o", (d, q)), ("gate", (ffn, d)), ("up", (ffn, d)),
                            ("down", (d, ffn)), ("router", (experts, d))):
            if 0 not in shape:
                add(prefix + SUFFIXES[name], *shape)
        for e in range(experts):
            for part, shape in (("gate", (fe, d)), ("up", (fe, d)), ("down", (d, fe))):
                add(expert_name(layer, e, part), *shape)
    if config.get("tie_word_embeddings"):
        del tensors["lm_head.weight"]
    return config, tensors
