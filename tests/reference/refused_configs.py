"""Checkpoints that no style defines, or that are damaged: vflow-convert leaves with status 3, a
message that names the field or tensor, and no output file.

The tensors always fit the config as far as that is possible, so that nothing else is wrong with
the checkpoint.
"""

import os

import numpy as np

import engine
from checkpoint_writer import random_tensors, write_checkpoint

DENSE = {
    "model_type": "pipeline_native", "combine_style": "delayed_sum", "hidden_size": 24,
    "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6,
    "intermediate_size": 20, "vocab_size": 40, "hidden_act": "silu",
    "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
FLOWS = {"num_flows": 2, "flow_coupling": ["query", "mlp_hidden", "mlp_output"]}
STYLE = {
    "decoupled_streams": {"merge_interval": 2},
    "pipeline_registers": {},
    "fixed_point": {"fixed_point_iterations": 2},
    "parallel_sqrt2": {},
}
LLAMA = {"model_type": "llama", "combine_style": None}


def style(name, **more):
    return {"combine_style": name, **STYLE.get(name, {}), **more}


def config_cases():
    """[(what, changes to DENSE, the word that the message must have)]; None removes a key."""
    out = []
    for name in ("decoupled_streams", "pipeline_registers", "fixed_point"):
        out.append((f"experts with {name}", style(name, **EXPERTS), "num_experts"))
    for name in STYLE:
        out.append((f"dense delay with {name}", style(name, dense_delay=1), "dense_delay"))
        more = style(name, attention_delay=1)
        out.append((f"attention delay with {name}", more, "attention_delay"))
    more = style("parallel_sqrt2", expert_delay=1, **EXPERTS)
    out.append(("expert delay with parallel_sqrt2", more, "expert_delay"))
    for name in ("pipeline_registers", "fixed_point"):
        out.append((f"expert delay with {name}", style(name, expert_delay=2), "expert_delay"))
    out.append(("no merge interval", {"combine_style": "decoupled_streams"}, "merge_interval"))
    out.append(("no iterations", {"combine_style": "fixed_point"}, "fixed_point_iterations"))
    for key, value in (
        ("combine_style", "zigzag"),
        ("combine_style", 1),
        ("model_type", "gemma9"),
        ("hidden_act", "swish2"),
        ("rope_type", "longrope"),
        ("rope_theta", 0),
        ("dense_delay", -1),
        ("dense_delay", 1.5),
        ("hidden_size", "24"),
        ("hidden_size", 0),
        ("num_hidden_layers", 0),
        ("num_attention_heads", 0),
        ("num_key_value_heads", 3),
        ("intermediate_size", 0),
        ("sliding_windows", 4),
        ("vocab_size", None),
        ("vocab_size", 1e12),
        ("head_dim", 7),
        ("partial_rotary_factor", 1.5),
        ("sliding_window", -4),
        ("layer_types", ["full_attention"]),
        ("layer_types", ["full_attention", "full_attention", "half_attention"]),
        ("rms_norm_eps", -1e-6),
        ("num_flows", 0),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
    ):
        out.append((f"{key} = {value!r}", {key: value}, key))
    for key, value in (
        ("num_experts_per_tok", 5),
        ("num_experts_per_tok", None),
        ("moe_intermediate_size", None),
        ("mlp_gated", False),
    ):
        out.append((f"{key} = {value!r} of 4 experts", {**EXPERTS, key: value}, key))
    for key, value in (
        ("flow_coupling", ["query", "mlp_input"]),
        ("flow_coupling", "query"),
        ("flow_router", "random"),
        ("flow_readout", "sum"),
        ("num_experts_per_tok_aux", 9),
    ):
        out.append((f"{key} = {value!r}", {**EXPERTS, **FLOWS, key: value}, key))
    scaling = {**LLAMA, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    out.append(("llama with rope_scaling dynamic", scaling, "dynamic"))
    for key, value in (("attention_bias", True), ("mlp_bias", True), ("dense_delay", 1)):
        out.append((f"llama with {key} = {value!r}", {**LLAMA, key: value}, key))
    more = {**LLAMA, "combine_style": "pipeline_registers"}
    out.append(("llama with a combine style", more, "combine_style"))
    moe = {**LLAMA, "model_type": "qwen3_moe", **EXPERTS}
    for key, value in (("decoder_sparse_step", 2), ("mlp_only_layers", [1])):
        out.append((f"qwen3_moe with {key} = {value!r}", {**moe, key: value}, key))
    return out


def tensor_cases():
    """[(what, change to {name: array}, the word that the message must have)]"""
    name = "model.layers.1.self_attn.k_proj.weight"

    def drop(t):
        del t[name]

    def extra(t):
        t["model.layers.1.self_attn.k_proj.bias"] = np.zeros(6)

    def reshape(t):
        t[name] = t[name].T.copy()

    def poison(value):
        def change(t):
            t[name][3, 5] = value

        return change

    def huge(t):
        t[name][3, 5] = 1e6  # a group's scale is an f16

    return [
        ("a missing tensor", drop, name),
        ("an extra tensor", extra, "model.layers.1.self_attn.k_proj.bias"),
        ("a misshapen tensor", reshape, name),
        ("a NaN", poison(np.nan), "layer 1 k_proj"),
        ("an infinity", poison(-np.inf), "layer 1 k_proj"),
        ("a weight that q4 can't hold", huge, "layer 1 k_proj"),
    ]


def best_tensors(raw):
    """The config's tensors, or DENSE's where the config makes no sense."""
    try:
        return random_tensors(raw, np.random.default_rng(1))
    except Exception:  # whatever a senseless config leads to
        return random_tensors(DENSE, np.random.default_rng(1))


def refused(raw, tensors, word):
    """(good, what was seen)"""
    with engine.scratch_dir() as directory:
        checkpoint = os.path.join(directory, "checkpoint")
        model = os.path.join(directory, "m.vflow")
        write_checkpoint(checkpoint, raw, tensors)
        done = engine.call("vflow-convert", checkpoint, "-o", model)
        left = [f for f in os.listdir(directory) if f != "checkpoint"]
    message = done.stderr.strip().replace(checkpoint, "CHECKPOINT")
    good = done.returncode == 3 and word in message and len(message.splitlines()) == 1 and not left
    return good, f"status {done.returncode}, left {left}: {message}"


def main():
    engine.require_programs("vflow-convert")
    configs, damages = config_cases(), tensor_cases()
    tap = engine.Tap(1 + len(configs) + len(damages))
    with engine.scratch_dir() as directory:
        checkpoint = os.path.join(directory, "checkpoint")
        write_checkpoint(checkpoint, DENSE, best_tensors(DENSE))
        done = engine.call("vflow-convert", checkpoint, "-o", os.path.join(directory, "m.vflow"))
        tap.ok(done.returncode == 0, "the checkpoint that the others are made from is taken")
    for what, changes, word in configs:
        raw = {k: v for k, v in {**DENSE, **changes}.items() if v is not None}
        good, seen = refused(raw, best_tensors(raw), word)
        tap.ok(good, what)
        tap.note(seen)
    for what, change, word in damages:
        tensors = best_tensors(DENSE)
        change(tensors)
        good, seen = refused(DENSE, tensors, word)
        tap.ok(good, what)
        tap.note(seen)
    tap.finish()


if __name__ == "__main__":
    main()
