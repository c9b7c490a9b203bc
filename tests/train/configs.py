"""A tiny config.json of every combine style and flow form."""

VOCAB = 300
BASE = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 64, "vocab_size": VOCAB, "max_position_embeddings": 64,
    "hidden_act": "gelu", "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
DUAL = {"num_flows": 2, "flow_coupling": ["query", "mlp_hidden", "mlp_output"]}
COMBINED = {**MOE, "dense_delay": 1, "expert_delay": 2}

STYLES = {
    "sequential_dense": {},
    "sequential_moe": {**MOE, "norm_topk_prob": False, "intermediate_size": 0},
    "arch1_decoupled_streams": {"combine_style": "decoupled_streams", "merge_interval": 3},
    "arch2_4_combined": COMBINED,
    "arch2_4_sync": {**MOE, "dense_delay": 1},
    "arch3_pipeline_registers": {"combine_style": "pipeline_registers", "mlp_gated": False},
    "arch4_async_experts": {**MOE, "combine_style": "async_experts", "expert_delay": 2},
    "arch5_fixed_point": {
        "combine_style": "fixed_point", "num_hidden_layers": 2, "fixed_point_iterations": 3,
    },
    "parallel_sqrt2": {**MOE, "combine_style": "parallel_sqrt2"},
    "attention_delay": {**COMBINED, "attention_delay": 2, "qk_norm": True, "sliding_window": 9},
    "attention_options": {
        "attn_logit_softcapping": 4.0, "final_logit_softcapping": 8.0, "v_norm": True,
        "embedding_scale": True, "tie_word_embeddings": True, "partial_rotary_factor": 0.5,
        "rope_type": "proportional", "rmsnorm_weight_offset": 1, "hidden_act": "relu2",
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
}  # fmt: skip
FLOWS = {
    "dual_dense": DUAL,
    "dual_ungated": {**DUAL, "mlp_gated": False},
    "dual_uncoupled": {"num_flows": 2, "flow_coupling": []},
    "dual_query": {"num_flows": 2, "flow_coupling": ["query"]},
    "dual_hidden": {**MOE, "num_flows": 2, "flow_coupling": ["mlp_hidden"]},
    "dual_output": {**MOE, "num_flows": 2, "flow_coupling": ["mlp_output"]},
    "dual_specific_dense": {**DUAL, "flow_specific_dense": True},
    "triple": {**DUAL, "num_flows": 3},
    "phd2": {"num_flows": 2, "flow_coupling": [], "flow_readout": "auxiliary"},
    "primary": {**DUAL, "flow_readout": "primary"},
    "dual_replay": {**MOE, **DUAL, "num_experts_per_tok": 1, "num_experts_per_tok_aux": 3},
    "dual_independent": {**MOE, **DUAL, "flow_router": "independent", "norm_topk_prob": False},
    "dual_combined": {**COMBINED, **DUAL},
    "dual_async": {
        **COMBINED, **DUAL, "combine_style": "async_experts", "attention_delay": 1,
    },
    "dual_fixed_point": {
        **DUAL, "combine_style": "fixed_point", "num_hidden_layers": 2,
        "fixed_point_iterations": 2,
    },
}  # fmt: skip


def all_configs():
    return {name: {**BASE, **keys} for name, keys in {**STYLES, **FLOWS}.items()}
