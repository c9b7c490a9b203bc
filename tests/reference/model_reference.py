"""A slow, independent reference of every model vflow runs: numpy, float64, whole texts at once.

It is written from the mathematics alone (combine styles, delays, flows, readouts, Q4 rounding) and
shares no code with the engine, so that an agreement of the two means something. Nothing here is
fast or clever on purpose: a text is scored layer by layer over all its positions, an expert is a
loop, a window is a mask.

    model = Model.load(directory, quant="q4")
    log_p = model.score(tokens)          # [T, V]: log P(next | tokens[0..t])
    model.router_margin                  # how close the closest top-k decision was
"""

import json
import math
import os
from types import SimpleNamespace

import numpy as np

# ------------------------------------------------------------------------------------------------
# Checkpoints: config.json and safetensors
# ------------------------------------------------------------------------------------------------


def read_safetensors(path):
    """Every tensor of one file by name, as float64."""
    with open(path, "rb") as f:
        data = f.read()
    header_bytes = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + header_bytes])
    body = memoryview(data)[8 + header_bytes :]
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        tensors[name] = _decode(entry["dtype"], body[begin:end]).reshape(entry["shape"])
    return tensors


def _decode(dtype, raw):
    if dtype == "BF16":  # the upper half of an f32
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).astype(float)
    return np.frombuffer(raw, {"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).astype(float)


def read_checkpoint(directory):
    with open(os.path.join(directory, "config.json")) as f:
        config = json.load(f)
    tensors = {}
    for file_name in sorted(os.listdir(directory)):
        if file_name.endswith(".safetensors"):
            tensors.update(read_safetensors(os.path.join(directory, file_name)))
    return config, tensors


# Where the model types differ in tensor names: router, then an expert's gate, up and down.
_MOE_NAMES = {
    "pipeline_native": ("moe.router", "moe.experts.{e}.{m}_proj", ("gate", "up", "down")),
    "qwen3_moe": ("mlp.gate", "mlp.experts.{e}.{m}_proj", ("gate", "up", "down")),
    "olmoe": ("mlp.gate", "mlp.experts.{e}.{m}_proj", ("gate", "up", "down")),
    "mixtral": ("block_sparse_moe.gate", "block_sparse_moe.experts.{e}.{m}", ("w1", "w3", "w2")),
}


def parse_config(raw):
    """config.json with every default filled in, under one set of names for all model types."""
    kind = raw["model_type"]
    c = SimpleNamespace(kind=kind)
    c.style = raw.get("combine_style", "delayed_sum")
    c.attention_delay = raw.get("attention_delay", 0)
    c.dense_delay = raw.get("dense_delay", 0)
    c.expert_delay = raw.get("expert_delay", 0)
    c.hidden = raw["hidden_size"]
    c.layers = raw["num_hidden_layers"]
    c.heads = raw["num_attention_heads"]
    c.kv_heads = raw.get("num_key_value_heads") or c.heads
    c.head_dim = raw.get("head_dim") or c.hidden // c.heads
    c.vocab = raw["vocab_size"]
    c.eps = raw.get("rms_norm_eps", 1e-6)
    c.norm_offset = 1.0 if raw.get("rmsnorm_weight_offset") else 0.0
    c.act = raw.get("hidden_act", "silu")
    c.gated = raw.get("mlp_gated", True)
    c.tied = raw.get("tie_word_embeddings", False)
    c.embedding_scale = raw.get("embedding_scale", False)
    c.final_cap = raw.get("final_logit_softcapping")
    c.merge_interval = raw.get("merge_interval")
    c.iterations = raw.get("fixed_point_iterations", 1) if c.style == "fixed_point" else 1
    _parse_attention(c, raw)
    _parse_experts(c, raw)
    c.flows = raw.get("num_flows", 1)
    c.router = raw.get("flow_router", "replay")
    c.readout = raw.get("flow_readout", "mixture")
    c.coupling = set(raw.get("flow_coupling") or [])
    c.flow_dense = raw.get("flow_specific_dense", False)
    return c


def _parse_attention(c, raw):
    c.theta = raw.get("rope_theta", 10000.0)
    c.proportional = raw.get("rope_type", "default") == "proportional"
    c.rotary = raw.get("partial_rotary_factor", 1.0)
    c.attn_scale = raw.get("attn_scale") or 1 / math.sqrt(c.head_dim)
    c.attn_cap = raw.get("attn_logit_softcapping")
    c.v_norm = raw.get("v_norm", False)
    c.attention_bias = c.kind == "qwen2"
    c.qk_norm = "head" if raw.get("qk_norm") or c.kind in ("qwen3", "qwen3_moe") else None
    if c.kind == "olmoe":
        c.qk_norm = "whole"
    window = raw.get("sliding_window")
    if c.kind.startswith("qwen") and not raw.get("use_sliding_window"):
        window = None
    types = raw.get("layer_types")
    if types is None and c.kind.startswith("qwen"):
        first = raw.get("max_window_layers", c.layers)
        c.windows = [window if layer >= first else None for layer in range(c.layers)]
    else:
        types = types or ["sliding_attention"] * c.layers
        c.windows = [window if t == "sliding_attention" else None for t in types]


def _parse_experts(c, raw):
    c.experts = raw.get("num_local_experts" if c.kind == "mixtral" else "num_experts") or 0
    c.ffn = raw.get("intermediate_size") or 0
    c.expert_ffn = raw.get("moe_intermediate_size") or 0
    if c.kind in ("mixtral", "olmoe"):
        c.expert_ffn = c.ffn
    if c.kind in ("mixtral", "olmoe", "qwen3_moe"):
        c.ffn = 0
    c.top_k = raw.get("num_experts_per_tok") or 0
    c.top_k_aux = raw.get("num_experts_per_tok_aux") or c.top_k
    c.norm_topk = raw.get("norm_topk_prob", c.kind not in ("olmoe", "qwen3_moe"))


# ------------------------------------------------------------------------------------------------
# Q4: what the converter stores, as the values that the stored form stands for
# ------------------------------------------------------------------------------------------------


def q4_round_trip(w):
    """Groups of 32 along the rows; s = max|w| / 7 in f16; codes 0..15 around 8."""
    rows, cols = w.shape
    padded = np.zeros((rows, (cols + 31) // 32 * 32))
    padded[:, :cols] = w
    groups = padded.reshape(rows, -1, 32)
    s = (np.abs(groups).max(axis=2, keepdims=True) / 7).astype(np.float16).astype(float)
    codes = np.rint(groups / np.where(s == 0, 1, s)) + 8  # rint rounds halves to even
    codes = np.where(s == 0, 8, np.clip(codes, 0, 15))
    return (s * (codes - 8)).reshape(rows, -1)[:, :cols]


# ------------------------------------------------------------------------------------------------
# The pieces of a layer
# ------------------------------------------------------------------------------------------------

_erf = np.vectorize(math.erf, otypes=[float])


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def relu2(x):
    return np.maximum(x, 0) ** 2


ACTIVATIONS = {"silu": silu, "gelu": gelu, "gelu_pytorch_tanh": gelu_tanh, "relu2": relu2}


def log_softmax(z):
    shifted = z - z.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def softmax(z):
    return np.exp(log_softmax(z))


def softcap(z, cap):
    return z if not cap else cap * np.tanh(z / cap)


def rms_norm(x, weight, eps):
    normed = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
    return normed if weight is None else normed * weight


def rope(x, c):
    """x [T, heads, hd] at positions 0..T-1; dimension i turns with its partner half a span away."""
    hd = c.head_dim
    if c.proportional:  # the first share of the pairs turns, frequencies as for the whole head
        span, turning = hd, round(c.rotary * (hd // 2))
    else:
        span = round(c.rotary * hd)
        turning = span // 2
    i = np.arange(turning)
    angle = np.arange(len(x))[:, None] * c.theta ** (-2.0 * i / span)
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    a, b = x[..., :turning], x[..., span // 2 : span // 2 + turning]
    out = x.copy()
    out[..., :turning] = a * cos - b * sin
    out[..., span // 2 : span // 2 + turning] = b * cos + a * sin
    return out


def rank(r):
    """Expert indices from best to worst for every row; equal logits: the lower index first."""
    return np.argsort(-r, axis=-1, kind="stable")


# ------------------------------------------------------------------------------------------------
# The model
# ------------------------------------------------------------------------------------------------


class Model:
    """config: parse_config's result; tensors: checkpoint name -> float64 array."""

    def __init__(self, config, tensors, quant="f32"):
        self.c = config
        self.tensors = tensors
        self.quant = quant
        self.act = ACTIVATIONS[config.act]
        self.router_margin = math.inf
        self._ready = {}

    @classmethod
    def load(cls, directory, quant="f32"):
        raw, tensors = read_checkpoint(directory)
        return cls(parse_config(raw), tensors, quant)

    # -- weights

    def matrix(self, name):
        if name not in self._ready:
            w = self.tensors[name + ".weight"]
            self._ready[name] = q4_round_trip(w) if self.quant == "q4" else w
        return self._ready[name]

    def norm_weight(self, name):
        return self.tensors[name + ".weight"] + self.c.norm_offset

    def flow_matrix(self, layer, flow, part):
        """A dense matrix of a flow: its own with flow_specific_dense, else the shared one."""
        own = f"flow.{flow}." if flow and self.c.flow_dense else ""
        return self.matrix(f"model.layers.{layer}.{own}{part}")

    def coupling(self, layer, flow, kind, vector):
        """The coupling vector of a flow >= 1, or None where the model has none of that kind."""
        if flow == 0 or kind not in self.c.coupling:
            return None
        return self.tensors[f"model.layers.{layer}.flow.{flow}.{vector}_coupling"]

    # -- parts; each takes and returns one [T, d] array a flow

    def attn_norm(self, layer, xs):
        w = self.norm_weight(f"model.layers.{layer}.input_layernorm")
        return [rms_norm(x, w, self.c.eps) for x in xs]

    def ffn_norm(self, layer, xs):
        w = self.norm_weight(f"model.layers.{layer}.post_attention_layernorm")
        return [rms_norm(x, w, self.c.eps) for x in xs]

    def attention(self, layer, xs):
        """m(l, u): every flow asks with its own query; keys and values are flow 0's."""
        ys = self.attn_norm(layer, xs)
        k = self._heads(self._project(layer, "k", ys[0]), layer, "k")
        v = self._project(layer, "v", ys[0]).reshape(len(ys[0]), self.c.kv_heads, self.c.head_dim)
        if self.c.v_norm:
            v = rms_norm(v, None, self.c.eps)
        q0 = self._project(layer, "q", ys[0])
        out = []
        for flow, y in enumerate(ys):
            q = q0
            if flow:
                q = y @ self.flow_matrix(layer, flow, "self_attn.q_proj").T
                a = self.coupling(layer, flow, "query", "query")
                if a is not None:
                    q = q + a * q0
            mixed = self._attend(layer, self._heads(q, layer, "q"), k, v)
            out.append(mixed @ self.flow_matrix(layer, flow, "self_attn.o_proj").T)
        return out

    def _project(self, layer, which, y):
        name = f"model.layers.{layer}.self_attn.{which}_proj"
        p = y @ self.matrix(name).T
        return p + self.tensors[name + ".bias"] if self.c.attention_bias else p

    def _heads(self, p, layer, which):
        """q or k as [T, heads, hd], normed and turned."""
        norm = f"model.layers.{layer}.self_attn.{which}_norm"
        if self.c.qk_norm == "whole":
            p = rms_norm(p, self.norm_weight(norm), self.c.eps)
        heads = p.reshape(len(p), -1, self.c.head_dim)
        if self.c.qk_norm == "head":
            heads = rms_norm(heads, self.norm_weight(norm), self.c.eps)
        return rope(heads, self.c)

    def _attend(self, layer, q, k, v):
        n = len(q)
        behind = np.arange(n)[:, None] - np.arange(n)[None, :]
        visible = behind >= 0
        if self.c.windows[layer]:
            visible &= behind < self.c.windows[layer]
        out = np.empty_like(q)
        for h in range(self.c.heads):
            source = h * self.c.kv_heads // self.c.heads
            keys, values = np.ascontiguousarray(k[:, source]), np.ascontiguousarray(v[:, source])
            scores = np.ascontiguousarray(q[:, h]) @ keys.T * self.c.attn_scale
            scores = np.where(visible, softcap(scores, self.c.attn_cap), -np.inf)
            out[:, h] = softmax(scores) @ values
        return out.reshape(n, -1)

    def _hidden(self, y, gate, up):
        return self.act(y @ up.T) if gate is None else self.act(y @ gate.T) * (y @ up.T)

    def dense(self, layer, ys):
        """F(y), coupled: H~_j = H_j + b_j H_0, M_j = Wdown H~_j + c_j M_0."""
        if not self.c.ffn:
            return [np.zeros_like(y) for y in ys]
        out, h0 = [], None
        for flow, y in enumerate(ys):
            gate = self.flow_matrix(layer, flow, "mlp.gate_proj") if self.c.gated else None
            h = self._hidden(y, gate, self.flow_matrix(layer, flow, "mlp.up_proj"))
            h0 = h if flow == 0 else h0
            b = self.coupling(layer, flow, "mlp_hidden", "mlp_hidden")
            if b is not None:
                h = h + b * h0
            m = h @ self.flow_matrix(layer, flow, "mlp.down_proj").T
            c = self.coupling(layer, flow, "mlp_output", "mlp_output")
            out.append(m if c is None else m + c * out[0])
        return out

    def dense_or_nothing(self, layer, us):
        """F(N(u)); None stands for the zero vector of a delay that reaches before layer 0."""
        if us is None:
            us = [np.zeros((self.length, self.c.hidden))] * self.c.flows
        return self.dense(layer, self.ffn_norm(layer, us))

    def route(self, layer, rs):
        """For every flow the chosen experts [T, k_j] and their weights."""
        router = _MOE_NAMES[self.c.kind][0]
        w = self.tensors[f"model.layers.{layer}.{router}.weight"]
        logits = [r @ w.T for r in rs]
        chosen = []
        for flow, r in enumerate(logits):
            k = self.c.top_k_aux if flow else self.c.top_k
            judge = r if flow == 0 or self.c.router == "independent" else logits[0]
            order = rank(judge)
            if k < self.c.experts:
                edge = np.take_along_axis(judge, order[:, k - 1 : k + 1], axis=1)
                self.router_margin = min(self.router_margin, (edge[:, 0] - edge[:, 1]).min())
            indices = order[:, :k]
            if self.c.norm_topk:
                weights = softmax(np.take_along_axis(r, indices, axis=1))
            else:
                weights = np.take_along_axis(softmax(r), indices, axis=1)
            chosen.append((indices, weights))
        return chosen

    def experts(self, layer, rs):
        """M(r): sum_i s_i expert_i(r), with H~_{j,i} = H_{j,i} + bm_j H_{0,i} where 0 chose i."""
        if not self.c.experts:
            return [np.zeros_like(r) for r in rs]
        chosen = self.route(layer, rs)
        _, pattern, parts = _MOE_NAMES[self.c.kind]
        out = [np.zeros_like(r) for r in rs]
        for e in range(self.c.experts):
            gate, up, down = (
                self.matrix(f"model.layers.{layer}." + pattern.format(e=e, m=m))
                if m != "gate" or self.c.gated
                else None
                for m in parts
            )
            h0 = self._hidden(rs[0], gate, up)
            zero_chose = (chosen[0][0] == e).any(axis=1, keepdims=True)
            for flow, r in enumerate(rs):
                h = h0 if flow == 0 else self._hidden(r, gate, up)
                b = self.coupling(layer, flow, "mlp_hidden", "moe_hidden")
                if b is not None:
                    h = h + np.where(zero_chose, b * h0, 0)
                indices, weights = chosen[flow]
                share = np.where(indices == e, weights, 0).sum(axis=1, keepdims=True)
                out[flow] += share * (h @ down.T)
        for flow in range(1, len(rs)):
            c = self.coupling(layer, flow, "mlp_output", "moe_output")
            if c is not None:
                out[flow] = out[flow] + c * out[0]
        return out

    # -- from tokens to log-probabilities

    def embed(self, tokens):
        xs = []
        for flow in range(self.c.flows):
            name = f"model.embed_tokens_aux.{flow}" if flow else "model.embed_tokens"
            xs.append(self.matrix(name)[np.asarray(tokens)])
        scale = math.sqrt(self.c.hidden) if self.c.embedding_scale else 1.0
        return [x * scale for x in xs]

    def logits(self, xs):
        head = self.matrix("model.embed_tokens" if self.c.tied else "lm_head")
        w = self.norm_weight("model.norm")
        return [softcap(rms_norm(x, w, self.c.eps) @ head.T, self.c.final_cap) for x in xs]

    def residuals(self, tokens, nudge=0.0, phase=0):
        """What the head reads, one [T, d] a flow."""
        self.length = len(tokens)
        xs = self.embed(tokens)
        wiggle = np.cos(phase + np.arange(xs[0].size)).reshape(xs[0].shape)
        return STYLES[self.c.style](self, [x * (1 + nudge * wiggle) for x in xs])

    def score(self, tokens, nudge=0.0, phase=0):
        """[T, V]. With a nudge every embedded value is off by up to that share of itself, in a
        pattern that the phase chooses: what becomes of the scores tells how much rounding matters
        to this model."""
        xs = self.residuals(tokens, nudge, phase)
        return readout(self.c, [log_softmax(z) for z in self.logits(xs)])

    def greedy(self, prompt, count):
        """Nothing of an auxiliary flow reaches a later position, so scoring anew each time gives
        what serving gives. Returns the new tokens and the smallest gap to the second best."""
        tokens, gap = list(prompt), math.inf
        for _ in range(count):
            last = self.score(tokens)[-1]
            second, first = np.sort(last)[-2:]
            gap = min(gap, first - second)
            tokens.append(int(last.argmax()))
        return tokens[len(prompt) :], gap


def readout(c, log_ps):
    log_p = log_ps[0]
    if c.flows == 1 or c.readout == "primary":
        return log_p
    log_q = np.logaddexp.reduce(log_ps[1:], axis=0) - math.log(c.flows - 1)
    if c.readout == "auxiliary":
        return log_q
    alpha = np.clip(np.exp(2 * log_p).sum(axis=-1, keepdims=True), 0.5, 1.0)
    with np.errstate(divide="ignore"):  # alpha = 1: q has no share
        return np.logaddexp(np.log(alpha) + log_p, np.log(1 - alpha) + log_q)


# ------------------------------------------------------------------------------------------------
# Combine styles. x is a list with one residual [T, d] a flow; add() sums such lists.
# ------------------------------------------------------------------------------------------------


def add(*lists):
    return [sum(parts[1:], parts[0]) for parts in zip(*lists)]


def scaled(factor, xs):
    return [factor * x for x in xs]


def delayed_sum(model, x):
    c, ins, outs, due = model.c, [], [], {}
    for layer in range(c.layers):
        ins.append(x)
        mid = add(x, model.attention(layer, ins[max(layer - c.attention_delay, 0)]))
        if c.dense_delay == 0:
            u = mid
        else:
            u = outs[layer - c.dense_delay] if layer >= c.dense_delay else None
        f = model.dense_or_nothing(layer, u)
        e = model.experts(layer, model.ffn_norm(layer, mid))
        due.setdefault(min(layer + c.expert_delay, c.layers - 1), []).append(e)
        x = add(mid, f, *due.pop(layer, []))
        outs.append(x)
    return x


def async_experts(model, x):
    c, ins, outs, due = model.c, [], [], {}
    for layer in range(c.layers):
        x = add(x, *due.pop(layer, []))
        ins.append(x)
        r = model.ffn_norm(layer, x)
        if c.dense_delay == 0:
            f = model.dense(layer, r)
        else:
            behind = layer - c.dense_delay
            f = model.dense_or_nothing(layer, outs[behind] if behind >= 0 else None)
        e = model.experts(layer, r)
        x = add(x, model.attention(layer, ins[max(layer - c.attention_delay, 0)]), f)
        if c.expert_delay == 0:
            x = add(x, e)
        else:
            due.setdefault(layer + c.expert_delay, []).append(e)
        outs.append(x)
    late = [e for layer in sorted(due) for e in due[layer]]
    return add(x, *late)


def parallel_sqrt2(model, x):
    for layer in range(model.c.layers):
        mid = add(x, model.attention(layer, x))
        y = model.ffn_norm(layer, mid)
        both = add(model.dense(layer, y), model.experts(layer, y))
        x = add(mid, scaled(1 / math.sqrt(2), both))
    return x


def decoupled_streams(model, x):
    a = s = x
    for layer in range(model.c.layers):
        a = add(a, model.attention(layer, a))
        s = add(s, model.dense(layer, model.ffn_norm(layer, s)))
        if (layer + 1) % model.c.merge_interval == 0:
            a = s = scaled(0.5, add(a, s))
    return scaled(0.5, add(a, s))


def pipeline_registers(model, x):
    a = t = x
    for layer in range(model.c.layers):
        f = model.dense(layer, model.ffn_norm(layer, t))
        a = add(a, model.attention(layer, a))
        t = add(a, f)
    return t


def fixed_point(model, x):
    for block in range(model.c.layers):
        start = x
        for _ in range(model.c.iterations):
            g = model.attention(block, x)
            x = add(start, g, model.dense(block, model.ffn_norm(block, add(x, g))))
    return x


STYLES = {
    "delayed_sum": delayed_sum,
    "async_experts": async_experts,
    "parallel_sqrt2": parallel_sqrt2,
    "decoupled_streams": decoupled_streams,
    "pipeline_registers": pipeline_registers,
    "fixed_point": fixed_point,
}
