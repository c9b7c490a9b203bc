"""Makes the small golden models of tests/golden/golden: one of every combine style, flow form and
delay, each with what the reference says about it.

    make_golden.py DIR [NAME ...]

Run once, its files are committed and stay: make_golden.py is the record of where they come from. A
text is drawn until nothing in it hangs on a rounding: routers, best tokens and greedy tokens are
clear by far more than a float32 engine may differ.
"""

import json
import os
import sys

import numpy as np

from checkpoint_writer import random_tensors, write_safetensors
from model_reference import Model

BASE = {
    "model_type": "pipeline_native", "hidden_size": 24, "num_hidden_layers": 5,
    "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 40,
    "vocab_size": 64, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "hidden_act": "gelu",
    "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ALONE = dict(MOE, intermediate_size=0)
DUAL = {"num_flows": 2, "flow_coupling": ["query", "mlp_hidden", "mlp_output"]}
SILU = {"hidden_act": "silu"}


def delayed(dense, expert, **more):
    return dict(MOE, combine_style="delayed_sum", dense_delay=dense, expert_delay=expert, **more)


CONFIGS = {
    "sequential_dense": dict(SILU, combine_style="delayed_sum"),
    "sequential_moe": dict(SILU, **ALONE, combine_style="delayed_sum", qk_norm=True,
                           norm_topk_prob=False, num_hidden_layers=6, vocab_size=100),
    "arch1_decoupled_streams": {"combine_style": "decoupled_streams", "merge_interval": 3},
    "arch2_4_sync": delayed(1, 0),
    "arch2_4_combined": delayed(1, 2, vocab_size=100),
    "arch3_pipeline_registers": {"combine_style": "pipeline_registers"},
    "arch4_async_experts": dict(MOE, combine_style="async_experts", dense_delay=0, expert_delay=2),
    "deep_delays": delayed(3, 4),
    "attention_delay_1": delayed(1, 2, attention_delay=1),
    "attention_delay_2_async_dual": dict(MOE, **DUAL, combine_style="async_experts",
                                         attention_delay=2, expert_delay=2),
    "parallel_sqrt2": dict(
        MOE, combine_style="parallel_sqrt2", hidden_act="gelu_pytorch_tanh", v_norm=True,
        qk_norm=True, sliding_window=5, layer_types=["sliding_attention"] * 4 + ["full_attention"],
        final_logit_softcapping=30.0, embedding_scale=True, tie_word_embeddings=True),
    "phd2": dict(SILU, num_flows=2, flow_coupling=[], flow_readout="auxiliary"),
    "dual_flow_dense": dict(SILU, **DUAL),
    "dual_flow_nanogpt": dict(DUAL, hidden_act="relu2", mlp_gated=False, qk_norm=True,
                              num_key_value_heads=3),
    "dual_flow_specific_dense": dict(SILU, **DUAL, flow_specific_dense=True),
    "dual_moe_replay": dict(SILU, **DUAL, **ALONE, flow_router="replay"),
    "dual_moe_k1_2_k2_4_replay": dict(SILU, **DUAL, **ALONE, flow_router="replay",
                                      num_experts_per_tok_aux=4),
    "dual_moe_k1_2_k2_4_independent": dict(SILU, **DUAL, **ALONE, flow_router="independent",
                                           num_experts_per_tok_aux=4),
    "dual_arch2_4_combined": delayed(1, 2, **DUAL),
    "triple_flow": dict(SILU, **dict(DUAL, num_flows=3)),
}  # fmt: skip

TOKENS, PROMPT, GREEDY = 24, 6, 12
ROUTER_MARGIN, GAP = 3e-4, 5e-3
DRAWS = 400


def save_checkpoint(directory, raw, tensors):
    """bf16 matrices, f32 vectors."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(raw, f)
    dtypes = {n: "BF16" if x.ndim == 2 else "F32" for n, x in tensors.items()}
    write_safetensors(os.path.join(directory, "model.safetensors"), tensors, dtypes)


def clear_gap(log_p):
    best = np.sort(log_p, axis=1)[:, -2:]
    return float((best[:, 1] - best[:, 0]).min())


def draw_text(models, rng, vocab):
    """tokens on which no model's router and no best token is a close call, and what each says."""
    for _ in range(DRAWS):
        tokens = [1] + rng.integers(3, vocab, TOKENS - 1).tolist()
        scores = {}
        for quant, model in models.items():
            model.router_margin = np.inf
            scores[quant] = model.score(tokens)
            if model.router_margin <= ROUTER_MARGIN or clear_gap(scores[quant]) <= GAP:
                break
        else:
            models["q4"].router_margin = np.inf
            greedy, gap = models["q4"].greedy(tokens[:PROMPT], GREEDY)
            if gap > GAP and models["q4"].router_margin > ROUTER_MARGIN:
                return tokens, scores, greedy, gap
    return None


def make(directory, name, seed):
    raw = dict(BASE, **CONFIGS[name])
    rng = np.random.default_rng(seed)
    save_checkpoint(directory, raw, random_tensors(raw, rng))
    models = {quant: Model.load(directory, quant) for quant in ("f32", "q4")}
    drawn = draw_text(models, rng, raw["vocab_size"])
    if not drawn:
        return False
    tokens, scores, greedy, gap = drawn
    golden = {"tokens": tokens, "logp_q4_argmax": scores["q4"].argmax(1).tolist(),
              "logp_argmax": scores["f32"].argmax(1).tolist(), "greedy_prompt": tokens[:PROMPT],
              "greedy_q4": greedy, "greedy_min_gap_q4": round(gap, 5)}
    with open(os.path.join(directory, "golden.json"), "w") as f:
        json.dump(golden, f)
    np.save(os.path.join(directory, "logp.npy"), scores["f32"].astype("<f4"))
    np.save(os.path.join(directory, "logp_q4.npy"), scores["q4"].astype("<f4"))
    return True


def main():
    for number, name in enumerate(CONFIGS):
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        seeds = range(1000 * number, 1000 * number + 20)
        if not any(make(os.path.join(sys.argv[1], name), name, seed) for seed in seeds):
            sys.exit(f"{name}: no text without a close call in {DRAWS} draws of 20 models")
        print(name)


if __name__ == "__main__":
    main()
