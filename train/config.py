"""config.json of a pipeline_native model with every default filled in, and what is refused."""

import math
from dataclasses import dataclass, field, fields

DELAYED_STYLES = ("delayed_sum", "async_experts")
EXPERT_STYLES = (*DELAYED_STYLES, "parallel_sqrt2")
STYLES = (*EXPERT_STYLES, "decoupled_streams", "pipeline_registers", "fixed_point")
CHOICES = {
    "combine_style": STYLES,
    "hidden_act": ("silu", "gelu", "gelu_pytorch_tanh", "relu2"),
    "flow_router": ("replay", "independent"),
    "flow_readout": ("mixture", "auxiliary", "primary"),
    "rope_type": ("default", "proportional"),
}
COUPLINGS = ("query", "mlp_hidden", "mlp_output")


@dataclass
class Config:
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    model_type: str = "pipeline_native"
    combine_style: str = "delayed_sum"
    attention_delay: int = 0
    dense_delay: int = 0
    expert_delay: int = 0
    num_key_value_heads: int = 0
    head_dim: int = 0
    intermediate_size: int = 0
    num_experts: int = 0
    num_experts_per_tok: int = 0
    num_experts_per_tok_aux: int = 0
    moe_intermediate_size: int = 0
    norm_topk_prob: bool = True
    max_position_embeddings: int = 512
    rms_norm_eps: float = 1e-6
    rmsnorm_weight_offset: int = 0
    rope_theta: float = 10000.0
    rope_type: str = "default"
    partial_rotary_factor: float = 1.0
    hidden_act: str = "silu"
    mlp_gated: bool = True
    qk_norm: bool = False
    v_norm: bool = False
    attn_scale: float = None
    attn_logit_softcapping: float = None
    final_logit_softcapping: float = None
    sliding_window: int = None
    layer_types: list = None
    embedding_scale: bool = False
    tie_word_embeddings: bool = False
    merge_interval: int = None
    fixed_point_iterations: int = 1
    bos_token_id: int = None
    eos_token_id: int = None
    num_flows: int = 1
    flow_router: str = "replay"
    flow_readout: str = "mixture"
    flow_coupling: list = field(default_factory=list)
    flow_specific_dense: bool = False

    @classmethod
    def parse(cls, raw):
        known = {f.name for f in fields(cls)}
        for key in raw:
            if key not in known:
                raise ValueError(f"config: unknown key {key}")
        config = cls(**raw)
        config._fill_in()
        config._check()
        return config

    def _fill_in(self):
        self.num_key_value_heads = self.num_key_value_heads or self.num_attention_heads
        self.head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        self.num_experts_per_tok_aux = self.num_experts_per_tok_aux or self.num_experts_per_tok
        self.attn_scale = self.attn_scale or 1 / math.sqrt(self.head_dim)
        self.flow_coupling = self.flow_coupling or []

    def _check(self):
        for key, allowed in CHOICES.items():
            self._require(key, getattr(self, key) in allowed, "one of " + ", ".join(allowed))
        delayed, style = self.combine_style in DELAYED_STYLES, self.combine_style
        for key in ("attention_delay", "dense_delay", "expert_delay"):
            self._require(key, getattr(self, key) >= 0, "0 or more")
            self._require(key, delayed or getattr(self, key) == 0, f"0 with {style}")
        experts = self.num_experts
        self._require("num_experts", not experts or style in EXPERT_STYLES, f"0 with {style}")
        for key in ("num_experts_per_tok", "num_experts_per_tok_aux"):
            fits = not experts or 1 <= getattr(self, key) <= experts
            self._require(key, fits, "1 to num_experts")
        self._require("moe_intermediate_size", not experts or self.moe_intermediate_size, "> 0")
        self._require("num_flows", self.num_flows >= 1, "1 or more")
        self._require("flow_coupling", set(self.flow_coupling) <= set(COUPLINGS), str(COUPLINGS))
        self._require("head_dim", self.head_dim % 2 == 0, "even")
        self._require("merge_interval", style != "decoupled_streams" or self.merge_interval, "> 0")

    def _require(self, key, good, allowed):
        if not good:
            raise ValueError(f"config: {key} is {getattr(self, key)!r}, allowed: {allowed}")

    def window(self, layer):
        """How many positions a layer sees back, itself included; None: all."""
        if self.layer_types and self.layer_types[layer] == "full_attention":
            return None
        return self.sliding_window
