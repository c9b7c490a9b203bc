"""Random valid models: a config.json of every architecture with awkward sizes.

random_config(index, rng) returns the raw config. The index decides the family, so that any run of
FAMILIES models meets every combine style and every model type; everything else is drawn.
"""

FAMILIES = (
    "delayed_sum", "async_experts", "parallel_sqrt2", "decoupled_streams", "llama",
    "pipeline_registers", "fixed_point", "qwen3_moe", "delayed_sum", "mistral", "async_experts",
    "mixtral", "qwen2", "parallel_sqrt2", "olmoe", "delayed_sum", "qwen3", "async_experts",
)  # fmt: skip

HEAD_DIMS = (2, 4, 6, 8, 10, 12, 16, 18, 22, 32, 34, 40, 64, 66)
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu2")
COUPLINGS = ("query", "mlp_hidden", "mlp_output")
CONTEXT = 64
LONG_CONTEXT = 400  # past every block of keys that attention may work in
LARGE_VOCAB = (4000, 9000)  # past every block of a softmax over the vocabulary


def random_config(index, rng):
    family = FAMILIES[index % len(FAMILIES)]
    raw = {"vocab_size": _int(rng, *(LARGE_VOCAB if rng.random() < 0.05 else (17, 700)))}
    raw["max_position_embeddings"] = LONG_CONTEXT if rng.random() < 0.08 else CONTEXT
    raw["rms_norm_eps"] = _pick(rng, (1e-6, 1e-5))
    raw["rope_theta"] = _pick(rng, (100.0, 10000, 10000.0, 1000000.0))
    _maybe(rng, 0.3, raw, "tie_word_embeddings", True)
    raw["num_hidden_layers"] = _int(rng, 1, 7)
    _geometry(raw, rng)
    raw["bos_token_id"], raw["eos_token_id"] = 1, 2
    if family in ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "olmoe"):
        _hugging_face(raw, family, rng)
    else:
        _pipeline_native(raw, family, rng)
    return raw


def _int(rng, low, high):
    """low..high, both included."""
    return int(rng.integers(low, high + 1))


def _pick(rng, options):
    return options[int(rng.integers(len(options)))]


def _maybe(rng, chance, raw, key, value):
    if rng.random() < chance:
        raw[key] = value


def _geometry(raw, rng):
    """Small sizes mostly; now and then more than one tile of 128 rows or 256 columns."""
    heads = _int(rng, 1, 6)
    raw["hidden_size"] = _int(rng, 129, 300) if rng.random() < 0.15 else _int(rng, 5, 100)
    raw["num_attention_heads"] = heads
    raw["num_key_value_heads"] = _pick(rng, [n for n in range(1, heads + 1) if heads % n == 0])
    raw["head_dim"] = _pick(rng, HEAD_DIMS)


def _experts(raw, rng, key="num_experts"):
    raw[key] = _int(rng, 2, 20)
    raw["num_experts_per_tok"] = _int(rng, 1, min(raw[key], 6))


# ------------------------------------------------------------------------------------------------
# Hugging Face's types, with their own keys
# ------------------------------------------------------------------------------------------------


def _hugging_face(raw, family, rng):
    raw["model_type"] = family
    raw["hidden_act"] = "silu"
    raw["torch_dtype"] = "bfloat16"
    raw["use_cache"] = True
    raw["attention_dropout"] = 0.0
    raw.setdefault("tie_word_embeddings", False)
    raw["intermediate_size"] = _int(rng, 1, 300)
    if family in ("llama", "mistral", "qwen2", "mixtral", "olmoe") and rng.random() < 0.6:
        del raw["head_dim"]  # as in the published files: it follows from hidden_size
        raw["hidden_size"] = raw["num_attention_heads"] * _pick(rng, (6, 8, 10, 16, 18, 34))
    if family == "olmoe":
        raw["num_key_value_heads"] = raw["num_attention_heads"]
        _maybe(rng, 0.6, raw, "norm_topk_prob", bool(rng.random() < 0.5))
        raw["clip_qkv"] = None
    if family in ("mistral", "mixtral"):
        raw["sliding_window"] = _int(rng, 1, 20) if rng.random() < 0.6 else None
    if family.startswith("qwen"):
        raw["use_sliding_window"] = family != "qwen3_moe" and bool(rng.random() < 0.4)
        windows = (5, 13) if raw["use_sliding_window"] else (None, 7, 4096)
        raw["sliding_window"] = _pick(rng, windows)
        raw["max_window_layers"] = _int(rng, 0, raw["num_hidden_layers"])
    if family in ("llama", "qwen3", "qwen3_moe", "olmoe"):
        raw["rope_scaling"] = None
        raw["attention_bias"] = False
    if family == "mixtral":
        _experts(raw, rng, "num_local_experts")
        raw["intermediate_size"] = _int(rng, 1, 150)
    if family in ("olmoe", "qwen3_moe"):
        _experts(raw, rng)
    if family == "qwen3_moe":
        raw["moe_intermediate_size"] = _int(rng, 1, 150)
        _maybe(rng, 0.8, raw, "norm_topk_prob", bool(rng.random() < 0.7))
        raw["decoder_sparse_step"], raw["mlp_only_layers"] = 1, []


# ------------------------------------------------------------------------------------------------
# pipeline_native
# ------------------------------------------------------------------------------------------------


def _pipeline_native(raw, style, rng):
    raw["model_type"] = "pipeline_native"
    if style != "delayed_sum" or rng.random() < 0.7:  # the default may be left out
        raw["combine_style"] = style
    raw["hidden_act"] = _pick(rng, ACTIVATIONS)
    _parts(raw, style, rng)
    if not raw.get("num_experts"):  # experts are gated always
        _maybe(rng, 0.35, raw, "mlp_gated", False)
    _delays(raw, style, rng)
    if style == "decoupled_streams":
        raw["merge_interval"] = _int(rng, 1, raw["num_hidden_layers"] + 1)
    if style == "fixed_point":
        raw["num_hidden_layers"] = _int(rng, 1, 3)
        raw["fixed_point_iterations"] = _int(rng, 1, 4)
    _attention(raw, rng)
    _maybe(rng, 0.25, raw, "final_logit_softcapping", float(_pick(rng, (5, 15, 30))))
    _maybe(rng, 0.2, raw, "embedding_scale", True)
    _maybe(rng, 0.2, raw, "rmsnorm_weight_offset", 1)
    if rng.random() < 0.2:
        del raw["rms_norm_eps"]
    if rng.random() < 0.55:
        _flows(raw, rng)


def _parts(raw, style, rng):
    """Dense FFN, experts or both, as far as the style has them."""
    experts = style in ("delayed_sum", "async_experts", "parallel_sqrt2") and rng.random() < 0.75
    dense = not experts or rng.random() < 0.7
    raw["intermediate_size"] = _int(rng, 1, 300) if dense else 0
    if experts:
        _experts(raw, rng)
        raw["moe_intermediate_size"] = _int(rng, 1, 150)
        _maybe(rng, 0.3, raw, "norm_topk_prob", False)


def _delays(raw, style, rng):
    if style not in ("delayed_sum", "async_experts"):
        _maybe(rng, 0.3, raw, "dense_delay", 0)
        return
    longest = raw["num_hidden_layers"] + 1
    _maybe(rng, 0.5, raw, "attention_delay", min(_int(rng, 0, 4), longest))
    if raw["intermediate_size"]:
        _maybe(rng, 0.7, raw, "dense_delay", min(_int(rng, 0, 4), longest))
    if raw.get("num_experts"):
        _maybe(rng, 0.8, raw, "expert_delay", min(_int(rng, 0, 5), longest))


def _attention(raw, rng):
    _maybe(rng, 0.35, raw, "qk_norm", True)
    _maybe(rng, 0.25, raw, "v_norm", True)
    _maybe(rng, 0.25, raw, "attn_logit_softcapping", float(_pick(rng, (2, 10, 50))))
    _maybe(rng, 0.15, raw, "attn_scale", float(_pick(rng, (0.1, 0.25, 0.5))))
    if rng.random() < 0.45:
        raw["sliding_window"] = _int(rng, 1, 20)
        if rng.random() < 0.7:
            kinds = ("sliding_attention", "full_attention")
            raw["layer_types"] = [_pick(rng, kinds) for _ in range(raw["num_hidden_layers"])]
    if rng.random() < 0.35:
        _rotation(raw, rng)
    if rng.random() < 0.2 and raw["hidden_size"] % raw["num_attention_heads"] == 0:
        if raw["hidden_size"] // raw["num_attention_heads"] % 2 == 0:
            del raw["head_dim"]
            raw.pop("partial_rotary_factor", None)
    if raw["num_key_value_heads"] == raw["num_attention_heads"] and rng.random() < 0.5:
        del raw["num_key_value_heads"]


def _rotation(raw, rng):
    """A share of the head that is exact in binary floating point, so that every reader agrees on
    how many dimensions turn."""
    pairs = raw["head_dim"] // 2
    shares = [n / pairs for n in range(1, pairs + 1) if n / pairs * pairs == n]
    raw["partial_rotary_factor"] = _pick(rng, shares)
    if "sliding_window" not in raw:
        _maybe(rng, 0.5, raw, "rope_type", "proportional")


def _flows(raw, rng):
    raw["num_flows"] = _int(rng, 2, 4)
    raw["flow_coupling"] = [c for c in COUPLINGS if rng.random() < 0.75]
    readouts = ("mixture", "mixture", "auxiliary", "primary")
    _maybe(rng, 0.8, raw, "flow_readout", _pick(rng, readouts))
    _maybe(rng, 0.3, raw, "flow_specific_dense", True)
    if raw.get("num_experts"):
        _maybe(rng, 0.8, raw, "flow_router", _pick(rng, ("replay", "independent")))
        most = min(raw["num_experts"], 6)
        _maybe(rng, 0.6, raw, "num_experts_per_tok_aux", _int(rng, 1, most))
