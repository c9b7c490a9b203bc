"""Every combine style, delay and flow form as one PyTorch model.

A residual is one tensor [flows, batch, length, hidden]: a matrix that all flows share is one
product for all of them. Flow 0 is the primary; what an auxiliary flow takes from it (keys and
values, the coupled terms) is written where it is taken. The modules are named as a checkpoint's
tensors, so that state_dict() is the checkpoint.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

ACTIVATIONS = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu2": lambda x: F.relu(x).square(),
}
SMALLEST = 1e-30  # below it a share of the mixture counts as this, so that its logarithm is finite


def linear(rows, columns):
    return nn.Linear(columns, rows, bias=False)


def softcap(z, cap):
    return z if not cap else cap * torch.tanh(z / cap)


def coupled(xs, vectors, x0):
    """Flow j >= 1 gets vectors[j - 1] * x0 added; vectors None: uncoupled."""
    if vectors is None:
        return xs
    shape = (len(vectors),) + (1,) * (xs.dim() - 2) + (-1,)
    return torch.cat((xs[:1], xs[1:] + vectors.view(shape) * x0))


class RmsNorm(nn.Module):
    def __init__(self, size, config):
        super().__init__()
        self.eps, self.offset = config.rms_norm_eps, float(config.rmsnorm_weight_offset)
        self.weight = nn.Parameter(torch.full((size,), 1.0 - self.offset))

    def forward(self, x):
        return rms(x, self.eps) * (self.weight + self.offset)


def rms(x, eps):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


class Rotation(nn.Module):
    """RoPE: dimension i turns with its partner half a span away."""

    def __init__(self, config):
        super().__init__()
        if config.rope_type == "proportional":  # a share of the pairs, exponents of the whole head
            span = config.head_dim
            self.turning = round(config.partial_rotary_factor * (config.head_dim // 2))
        else:
            span = round(config.partial_rotary_factor * config.head_dim)
            self.turning = span // 2
        self.half = span // 2
        pairs = torch.arange(self.turning, dtype=torch.float64)
        positions = torch.arange(config.max_position_embeddings, dtype=torch.float64)
        angles = positions[:, None] * config.rope_theta ** (-2 * pairs / span)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, x):
        """x [..., length, head_dim]"""
        n, t, h = x.shape[-2], self.turning, self.half
        cos, sin = self.cos[:n], self.sin[:n]
        a, b = x[..., :t], x[..., h : h + t]
        parts = (a * cos - b * sin, x[..., t:h], b * cos + a * sin, x[..., h + t :])
        return torch.cat(parts, dim=-1)


class SelfAttention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        c = self.config = config
        self.window = c.window(layer)
        q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.q_proj, self.o_proj = linear(q, c.hidden_size), linear(c.hidden_size, q)
        self.k_proj, self.v_proj = linear(kv, c.hidden_size), linear(kv, c.hidden_size)
        if c.qk_norm:
            self.q_norm, self.k_norm = RmsNorm(c.head_dim, c), RmsNorm(c.head_dim, c)

    def forward(self, y, flows, rotation):
        c = self.config
        q0 = self.q_proj(y[0])
        q = coupled(flows.apply("self_attn.q_proj", self.q_proj, y), flows.vectors("query"), q0)
        q = self._heads(q, c.num_attention_heads)
        k = self._heads(self.k_proj(y[0]), c.num_key_value_heads)
        v = self._heads(self.v_proj(y[0]), c.num_key_value_heads)
        if c.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if c.v_norm:
            v = rms(v, c.rms_norm_eps)
        repeats = c.num_attention_heads // c.num_key_value_heads
        k, v = rotation(k).repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        mixed = self._attend(rotation(q), k, v)
        mixed = mixed.transpose(2, 3).flatten(3)
        return flows.apply("self_attn.o_proj", self.o_proj, mixed)

    def _heads(self, p, count):
        """[..., length, heads * hd] as [..., heads, length, hd]"""
        return p.unflatten(-1, (count, self.config.head_dim)).transpose(-3, -2)

    def _attend(self, q, k, v):
        """q [flows, batch, heads, length, hd]; keys and values are flow 0's."""
        c = self.config
        q, k, v = q.to(v.dtype), k.to(v.dtype).expand_as(q), v.expand_as(q)
        if hasattr(F, "scaled_dot_product_attention") and not c.attn_logit_softcapping:
            q = q * (c.attn_scale * math.sqrt(c.head_dim))
            if self.window:
                return F.scaled_dot_product_attention(q, k, v, attn_mask=self._visible(q))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = softcap((q * c.attn_scale) @ k.transpose(-1, -2), c.attn_logit_softcapping)
        scores = scores.float().masked_fill(~self._visible(q), -math.inf)
        return scores.softmax(-1).to(v.dtype) @ v

    def _visible(self, q):
        at = torch.arange(q.shape[-2], device=q.device)
        behind = at[:, None] - at[None, :]
        visible = behind >= 0
        return visible & (behind < self.window) if self.window else visible


class Ffn(nn.Module):
    """The matrices of a dense FFN or of one expert."""

    def __init__(self, config, size):
        super().__init__()
        self.act = ACTIVATIONS[config.hidden_act]
        if config.mlp_gated:
            self.gate_proj = linear(size, config.hidden_size)
        self.up_proj = linear(size, config.hidden_size)
        self.down_proj = linear(config.hidden_size, size)

    def hidden(self, y):
        if hasattr(self, "gate_proj"):
            return self.act(self.gate_proj(y)) * self.up_proj(y)
        return self.act(self.up_proj(y))


class Experts(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.router = linear(config.num_experts, config.hidden_size)
        size = config.moe_intermediate_size
        self.experts = nn.ModuleList(Ffn(config, size) for _ in range(config.num_experts))

    def forward(self, r, flows):
        """The experts' output of every flow, and the loss that keeps their load even."""
        logits = self._logits(r)
        share, chosen = self.route(logits)
        out = self._sum(r.flatten(1, 2), share.flatten(1, 2), chosen.flatten(1, 2), flows)
        out = out.view(r.shape)
        out = coupled(out, flows.vectors("mlp_output", "moe_output"), out[0])
        return out, self._imbalance(logits, chosen)

    def _logits(self, r):
        with torch.autocast(r.device.type, enabled=False):  # routing decides: always in float32
            return F.linear(r.float(), self.router.weight.float())

    def route(self, logits):
        """[flows, batch, length, experts]: each expert's weight in the sum, and whether chosen."""
        c = self.config
        order = torch.sort(logits, dim=-1, descending=True, stable=True).indices
        if c.flow_router == "replay":
            order = order[:1].expand_as(order)
        ranks = torch.arange(c.num_experts, device=order.device).expand_as(order)
        rank = torch.empty_like(order).scatter_(-1, order, ranks)
        most = torch.full((len(logits), 1, 1, 1), c.num_experts_per_tok_aux, device=logits.device)
        most[0] = c.num_experts_per_tok
        chosen = rank < most
        if c.norm_topk_prob:
            share = logits.masked_fill(~chosen, -math.inf).softmax(-1)
        else:
            share = logits.softmax(-1) * chosen
        return share, chosen

    def _sum(self, r, share, chosen, flows):
        """Expert by expert over the rows of all flows that chose it; flow 0's rows come first."""
        positions = r.shape[1]
        r, share, chosen = r.flatten(0, 1), share.flatten(0, 1), chosen.flatten(0, 1)
        vectors = flows.vectors("mlp_hidden", "moe_hidden")
        out = torch.zeros_like(r, dtype=torch.float32)
        for e, expert in enumerate(self.experts):
            rows = chosen[:, e].nonzero().squeeze(1)
            h = expert.hidden(r[rows])
            if vectors is not None:
                h = self._couple(h, rows, positions, vectors)
            weighted = expert.down_proj(h).float() * share[rows, e, None]
            out = out.index_add(0, rows, weighted)
        return out

    @staticmethod
    def _couple(h, rows, positions, vectors):
        """Adds bm_j * H_0 where flow 0 chose the expert too; elsewhere its H_0 stays zero."""
        primary = int((rows < positions).sum())
        h0 = h.new_zeros(positions, h.shape[1]).index_copy(0, rows[:primary], h[:primary])
        later = rows[primary:]
        added = vectors[later // positions - 1].to(h.dtype) * h0[later % positions]
        return torch.cat((h[:primary], h[primary:] + added))

    def _imbalance(self, logits, chosen):
        """experts * sum of (share of choices * mean probability): 1 where the load is even."""
        if self.config.flow_router == "replay":  # the others follow flow 0
            logits, chosen = logits[:1], chosen[:1]
        load = chosen.float().flatten(0, 2).mean(0)
        probability = logits.softmax(-1).flatten(0, 2).mean(0)
        return self.config.num_experts * (load / load.sum() * probability).sum()


class FlowVectors(nn.Module):
    """What a layer keeps for one auxiliary flow: couplings and, if it has them, matrices."""

    def __init__(self, config):
        super().__init__()
        c, sizes = config, {}
        if "query" in c.flow_coupling:
            sizes["query"] = c.num_attention_heads * c.head_dim
        for kind, size in (("hidden", 0), ("output", c.hidden_size)):
            if "mlp_" + kind in c.flow_coupling and c.intermediate_size:
                sizes["mlp_" + kind] = size or c.intermediate_size
            if "mlp_" + kind in c.flow_coupling and c.num_experts:
                sizes["moe_" + kind] = size or c.moe_intermediate_size
        for name, size in sizes.items():
            self.register_parameter(name + "_coupling", nn.Parameter(torch.zeros(size)))
        if c.flow_specific_dense:
            q = c.num_attention_heads * c.head_dim
            self.self_attn = nn.Module()
            self.self_attn.q_proj = linear(q, c.hidden_size)
            self.self_attn.o_proj = linear(c.hidden_size, q)
            if c.intermediate_size:
                self.mlp = Ffn(c, c.intermediate_size)


class Flows(nn.ModuleDict):
    """The auxiliary flows of a layer by number, from "1"."""

    def __init__(self, config):
        super().__init__({str(j): FlowVectors(config) for j in range(1, config.num_flows)})
        self.kinds, self.own = set(config.flow_coupling), config.flow_specific_dense

    def vectors(self, kind, name=None):
        """[flows - 1, size], or None where the model has no such coupling."""
        if not len(self) or kind not in self.kinds:
            return None
        return torch.stack([getattr(f, (name or kind) + "_coupling") for f in self.values()])

    def apply(self, path, shared, x):
        """shared(x); with matrices of their own, the auxiliary flows' through theirs."""
        if not len(self) or not self.own:
            return shared(x)
        own = [f.get_submodule(path)(x[j]) for j, f in enumerate(self.values(), 1)]
        return torch.stack([shared(x[0]), *own])


class Layer(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config)
        self.self_attn = SelfAttention(config, layer)
        if config.intermediate_size:
            self.mlp = Ffn(config, config.intermediate_size)
        if config.num_experts:
            self.moe = Experts(config)
        self.flow = Flows(config)

    def attention(self, u, rotation):
        """m(l, u)"""
        return self.self_attn(self.input_layernorm(u), self.flow, rotation)

    def dense(self, u):
        """F(N(u)); None stands for the zero vector, for which it is zero."""
        if u is None or not hasattr(self, "mlp"):
            return 0
        y, mlp = self.post_attention_layernorm(u), self.mlp
        h = mlp.hidden(y)
        if self.flow.own and len(self.flow):
            own = [f.mlp.hidden(y[j]) for j, f in enumerate(self.flow.values(), 1)]
            h = torch.stack([mlp.hidden(y[0]), *own])
        h = coupled(h, self.flow.vectors("mlp_hidden"), h[0])
        m = self.flow.apply("mlp.down_proj", mlp.down_proj, h)
        return coupled(m, self.flow.vectors("mlp_output"), m[0])

    def experts(self, u, imbalances):
        """M(N(u))"""
        if not hasattr(self, "moe"):
            return 0
        out, imbalance = self.moe(self.post_attention_layernorm(u), self.flow)
        imbalances.append(imbalance)
        return out


class Trunk(nn.Module):
    """Embeddings, layers and the last norm."""

    def __init__(self, config):
        super().__init__()
        c = config
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.embed_tokens_aux = nn.ModuleDict(
            {str(j): nn.Embedding(c.vocab_size, c.hidden_size) for j in range(1, c.num_flows)}
        )
        self.layers = nn.ModuleList(Layer(c, layer) for layer in range(c.num_hidden_layers))
        self.norm = RmsNorm(c.hidden_size, c)


class Model(nn.Module):
    """config: train.config.Config. New weights are drawn from torch's generator."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.rotation = Rotation(config)
        self.model = Trunk(config)
        if not config.tie_word_embeddings:
            self.lm_head = linear(config.vocab_size, config.hidden_size)
        self._initialise()

    def _initialise(self):
        """Normal with 0.02; what adds to the residual less, for its sum over the layers."""
        depth = self.config.num_hidden_layers * self.config.fixed_point_iterations
        for name, p in self.named_parameters():
            if p.dim() == 2:
                adds = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * depth) if adds else 0.02)

    def logits(self, tokens):
        """[flows, batch, length, vocabulary], and the layers' mean expert imbalance."""
        c, imbalances = self.config, []
        tables = [self.model.embed_tokens, *self.model.embed_tokens_aux.values()]
        x = torch.stack([table(tokens) for table in tables])
        if c.embedding_scale:
            x = x * math.sqrt(c.hidden_size)
        x = COMBINE[c.combine_style](self, x, imbalances)
        table = self.model.embed_tokens if c.tie_word_embeddings else self.lm_head
        z = F.linear(self.model.norm(x), table.weight).float()
        imbalance = torch.stack(imbalances).mean() if imbalances else z.new_zeros(())
        return softcap(z, c.final_logit_softcapping), imbalance

    def log_probs(self, tokens):
        """log P [batch, length, vocabulary] of the token behind each position."""
        log_p = self.logits(tokens)[0].log_softmax(-1)
        return read_out(self.config, log_p, log_p[0])

    def loss(self, tokens, targets):
        """Mean of -log P(target), and the expert imbalance. Only the targets' columns are mixed."""
        z, imbalance = self.logits(tokens)
        log_p = z.log_softmax(-1)
        index = targets[None, ..., None].expand(len(log_p), *targets.shape, 1)
        return -read_out(self.config, log_p.gather(-1, index), log_p[0]).mean(), imbalance


def read_out(config, log_ps, primary):
    """log P from each flow's log_ps [flows, ..., columns]; primary: flow 0's, all columns."""
    if len(log_ps) == 1 or config.flow_readout == "primary":
        return log_ps[0]
    log_q = log_ps[1:].logsumexp(0) - math.log(len(log_ps) - 1)
    if config.flow_readout == "auxiliary":
        return log_q
    # 1 - sum p^2 = sum p (1 - p), which keeps its digits where flow 0 is nearly certain.
    rest = (primary.exp() * -torch.expm1(primary)).sum(-1, keepdim=True).clamp(SMALLEST, 0.5)
    return torch.logaddexp(torch.log1p(-rest) + log_ps[0], rest.log() + log_q)


# ------------------------------------------------------------------------------------------------
# Combine styles: from the embedded residual to what the head reads
# ------------------------------------------------------------------------------------------------


def delayed_sum(model, x, imbalances):
    c, layers = model.config, model.model.layers
    ins, outs, due = [], [], {}
    for l, layer in enumerate(layers):
        ins.append(x)
        mid = x + layer.attention(ins[max(l - c.attention_delay, 0)], model.rotation)
        f = layer.dense(mid if c.dense_delay == 0 else older(outs, l - c.dense_delay))
        e = layer.experts(mid, imbalances)
        due.setdefault(min(l + c.expert_delay, len(layers) - 1), []).append(e)
        x = mid + f + sum(due.pop(l, []))
        outs.append(x)
    return x


def older(outs, layer):
    return outs[layer] if layer >= 0 else None


def async_experts(model, x, imbalances):
    c = model.config
    ins, outs, due = [], [], {}
    for l, layer in enumerate(model.model.layers):
        x = x + sum(due.pop(l, []))
        ins.append(x)
        f = layer.dense(x if c.dense_delay == 0 else older(outs, l - c.dense_delay))
        e = layer.experts(x, imbalances)
        x = x + layer.attention(ins[max(l - c.attention_delay, 0)], model.rotation) + f
        if c.expert_delay == 0:
            x = x + e
        else:
            due.setdefault(l + c.expert_delay, []).append(e)
        outs.append(x)
    return x + sum(e for l in sorted(due) for e in due[l])


def parallel_sqrt2(model, x, imbalances):
    for layer in model.model.layers:
        mid = x + layer.attention(x, model.rotation)
        x = mid + (layer.dense(mid) + layer.experts(mid, imbalances)) / math.sqrt(2)
    return x


def decoupled_streams(model, x, imbalances):
    a = s = x
    for l, layer in enumerate(model.model.layers):
        a, s = a + layer.attention(a, model.rotation), s + layer.dense(s)
        if (l + 1) % model.config.merge_interval == 0:
            a = s = (a + s) / 2
    return (a + s) / 2


def pipeline_registers(model, x, imbalances):
    a = t = x
    for layer in model.model.layers:
        f = layer.dense(t)
        a = a + layer.attention(a, model.rotation)
        t = a + f
    return t


def fixed_point(model, x, imbalances):
    for block in model.model.layers:
        start = x
        for _ in range(model.config.fixed_point_iterations):
            g = block.attention(x, model.rotation)
            x = start + g + block.dense(x + g)
    return x


COMBINE = {
    "delayed_sum": delayed_sum,
    "async_experts": async_experts,
    "parallel_sqrt2": parallel_sqrt2,
    "decoupled_streams": decoupled_streams,
    "pipeline_registers": pipeline_registers,
    "fixed_point": fixed_point,
}
