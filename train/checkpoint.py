"""Checkpoints that vflow-convert takes: config.json, model.safetensors, tokenizer.json.

write() leaves the directory whole or, where it is killed, without config.json.
"""

import json
import os
import shutil

import torch

from train.config import Config
from train.files import replace
from train.model import Model

DTYPES = {"f32": ("F32", torch.float32), "bf16": ("BF16", torch.bfloat16)}


def write(directory, raw_config, model, dtype="f32", tokenizer=None):
    """raw_config: what model.config was parsed from; tokenizer: a tokenizer.json or None."""
    os.makedirs(directory, exist_ok=True)
    write_safetensors(os.path.join(directory, "model.safetensors"), model.state_dict(), dtype)
    if tokenizer:
        shutil.copyfile(tokenizer, os.path.join(directory, "tokenizer.json"))
    raw = {"model_type": "pipeline_native", **raw_config}
    replace(os.path.join(directory, "config.json"), json.dumps(raw, indent=1).encode() + b"\n")


def write_safetensors(path, tensors, dtype="f32"):
    name, kind = DTYPES[dtype]
    header, bodies, at = {}, [], 0
    for key, tensor in tensors.items():
        raw = _bytes(tensor.detach().to("cpu", kind))
        header[key] = {
            "dtype": name,
            "shape": list(tensor.shape),
            "data_offsets": [at, at + len(raw)],
        }
        bodies.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data begin at a multiple of 8
    replace(path, b"".join([len(text).to_bytes(8, "little"), text, *bodies]))


def _bytes(tensor):
    if tensor.dtype == torch.bfloat16:  # numpy has no bfloat16: the same bits as integers
        tensor = tensor.view(torch.int16)
    return tensor.contiguous().numpy().tobytes()


def read(directory, device="cpu"):
    """(raw config, model) of a checkpoint that write() made."""
    with open(os.path.join(directory, "config.json")) as f:
        raw = json.load(f)
    model = Model(Config.parse(raw))
    model.load_state_dict(read_safetensors(os.path.join(directory, "model.safetensors")))
    return raw, model.to(device)


def read_safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for key, entry in json.loads(data[8:start]).items():
        begin, end = entry["data_offsets"]
        raw = bytearray(data[start + begin : start + end])
        kind = {name: kind for name, kind in DTYPES.values()}[entry["dtype"]]
        tensors[key] = torch.frombuffer(raw, dtype=kind).view(entry["shape"]).float()
    return tensors
