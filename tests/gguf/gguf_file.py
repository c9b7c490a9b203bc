"""An independent writer of GGUF files, from the format's published description. Needs numpy.

A file is a list of metadata entries [(key, type, value)] and a list of tensors
[(name, ggml type, dims, bytes)]; dims[0] is a row's length. build() makes the bytes and remembers
where each field lies, so that tests can break one field at a time.
"""
import struct

import numpy as np

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
SCALARS = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<B",
           U64: "<Q", I64: "<q", F64: "<d"}
NUMPY = {U8: "u1", I8: "i1", U16: "<u2", I16: "<i2", U32: "<u4", I32: "<i4", F32: "<f4", BOOL: "u1",
         U64: "<u8", I64: "<i8", F64: "<f8"}
GGML = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 8, "BF16": 30}


def string(s):
    data = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, v):
    """The bytes of a value; an array is (element type, list)."""
    if kind == STRING:
        return string(v)
    if kind == ARRAY:
        element, items = v
        if element in SCALARS:
            body = np.asarray(items, NUMPY[element]).tobytes()
        else:
            body = b"".join(value(element, item) for item in items)
        return struct.pack("<IQ", element, len(items)) + body
    return struct.pack(SCALARS[kind], v)


class Built:
    """The bytes of a file, and {field: offset} of what tests break."""

    def __init__(self):
        self.data = bytearray()
        self.at = {}

    def add(self, name, data):
        self.at[name] = len(self.data)
        self.data += data


def build(metadata, tensors, version=3, align=32, offsets=None, tensor_count=None, key_count=None):
    """offsets: {tensor name: offset} instead of one behind the other."""
    b = Built()
    b.add("magic", b"GGUF")
    b.add("version", struct.pack("<I", version))
    b.add("tensor_count", struct.pack("<Q", len(tensors) if tensor_count is None else tensor_count))
    b.add("key_count", struct.pack("<Q", len(metadata) if key_count is None else key_count))
    for key, kind, v in metadata:
        b.add("key " + str(key), string(key))
        b.add("type " + str(key), struct.pack("<I", kind))
        b.add("value " + str(key), value(kind, v))
    at, places = 0, []
    for name, kind, dims, data in tensors:
        place = (offsets or {}).get(name, at)
        places.append(place)
        b.add("name " + str(name), string(name))
        b.add("rank " + str(name), struct.pack("<I", len(dims)))
        b.add("dims " + str(name), struct.pack("<%dQ" % len(dims), *dims))
        b.add("ggml " + str(name), struct.pack("<I", GGML.get(kind, kind)))
        b.add("offset " + str(name), struct.pack("<Q", place))
        at = -(-(at + len(data)) // align) * align
    b.add("header_end", b"")
    b.data += bytes(-len(b.data) % align)
    b.add("data", b"")
    begin = len(b.data)
    for place, (name, _, _, data) in zip(places, tensors):
        end = begin + place + len(data)
        if place < 1 << 40:
            b.data += bytes(max(0, end - len(b.data)))
            b.data[begin + place:end] = data
    b.data += bytes(-len(b.data) % align)
    return b


# ---- weights ----

def to_bf16(w):
    """Rounded to nearest even, as uint16."""
    bits = np.ascontiguousarray(w, "<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def from_bf16(bits):
    return (bits.astype("<u4") << 16).view("<f4")


def q4_blocks(w, signed=False):
    """Q4_0 blocks of f32 rows: MODEL.md's scale max|w| / 7, or ggml's own, -max / 8 with a sign."""
    g = np.asarray(w, np.float32).reshape(-1, 32)
    if signed:
        peak = np.take_along_axis(g, np.abs(g).argmax(axis=1)[:, None], 1)[:, 0]
        scale = (peak / np.float32(-8)).astype(np.float16)
    else:
        scale = (np.abs(g).max(axis=1) / np.float32(7)).astype(np.float16)
    wide = scale.astype(np.float32)[:, None]
    code = np.clip(np.rint(g / np.where(wide == 0, np.float32(1), wide)), -8, 7)
    q = (np.where(wide == 0, 0, code) + 8).astype(np.uint8)
    blocks = np.zeros((len(g), 18), np.uint8)
    blocks[:, :2] = scale.astype("<f2")[:, None].view(np.uint8)
    blocks[:, 2:] = q[:, :16] | q[:, 16:] << 4
    return blocks.tobytes()


def q8_blocks(w):
    g = np.asarray(w, np.float32).reshape(-1, 32)
    scale = (np.abs(g).max(axis=1) / np.float32(127)).astype(np.float16)
    wide = scale.astype(np.float32)[:, None]
    code = np.clip(np.rint(g / np.where(wide == 0, np.float32(1), wide)), -127, 127)
    blocks = np.zeros((len(g), 34), np.uint8)
    blocks[:, :2] = scale.astype("<f2")[:, None].view(np.uint8)
    blocks[:, 2:] = np.where(wide == 0, 0, code).astype(np.int8).view(np.uint8)
    return blocks.tobytes()


def dequantise(kind, data, shape):
    """The weights that the bytes stand for, as f32."""
    if kind == "F32":
        return np.frombuffer(data, "<f4").reshape(shape)
    if kind == "F16":
        return np.frombuffer(data, "<f2").astype(np.float32).reshape(shape)
    if kind == "BF16":
        return from_bf16(np.frombuffer(data, "<u2")).reshape(shape)
    blocks = np.frombuffer(data, np.uint8).reshape(-1, 18 if kind == "Q4_0" else 34)
    scale = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    if kind == "Q4_0":
        q = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1).astype(np.float32) - 8
    else:
        q = blocks[:, 2:].view(np.int8).astype(np.float32)
    return (scale * q).reshape(shape)


def encode(kind, w):
    w = np.ascontiguousarray(w, "<f4")
    return {"F32": lambda: w.tobytes(), "F16": lambda: w.astype("<f2").tobytes(),
            "BF16": lambda: to_bf16(w).tobytes(), "Q4_0": lambda: q4_blocks(w),
            "Q8_0": lambda: q8_blocks(w)}[kind]()


def tensor(name, w, kind="F32"):
    w = np.asarray(w)
    return (name, kind, list(reversed(w.shape)), encode(kind, w))


def interleave(w, heads):
    """The row order of llama's q and k: a head's two halves, a row of each in turn."""
    rows = w.shape[0]
    split = w.reshape(heads, 2, rows // heads // 2, *w.shape[1:])
    return split.swapaxes(1, 2).reshape(w.shape)


# ---- models ----

class Model:
    """A little random model of one architecture: metadata, and its weights as f32 in our order."""

    def __init__(self, arch, seed=1, d=64, layers=2, heads=4, kv=2, hd=None, ffn=96, experts=0, k=2,
                 vocab=80, tied=False, context=64):
        self.arch, self.heads, self.kv, self.experts = arch, heads, kv, experts
        self.layers, self.tied = layers, tied
        hd = hd or d // heads
        rng = np.random.default_rng(seed)
        self.weights = w = {}

        def add(name, *shape, base=0.0):
            w[name] = (base + rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

        q, kvd = heads * hd, kv * hd
        add("token_embd.weight", vocab, d)
        add("output_norm.weight", d, base=1.0)
        if not tied:
            add("output.weight", vocab, d)
        for layer in range(layers):
            p = "blk.%d." % layer
            add(p + "attn_norm.weight", d, base=1.0)
            add(p + "ffn_norm.weight", d, base=1.0)
            for name, rows in (("q", q), ("k", kvd), ("v", kvd)):
                add(p + "attn_%s.weight" % name, rows, d)
                if arch == "qwen2":
                    add(p + "attn_%s.bias" % name, rows)
            add(p + "attn_output.weight", d, q)
            if arch in ("qwen3", "qwen3moe", "olmoe"):
                whole = arch == "olmoe"
                add(p + "attn_q_norm.weight", q if whole else hd, base=1.0)
                add(p + "attn_k_norm.weight", kvd if whole else hd, base=1.0)
            if experts:
                add(p + "ffn_gate_inp.weight", experts, d)
                add(p + "ffn_gate_exps.weight", experts, ffn, d)
                add(p + "ffn_up_exps.weight", experts, ffn, d)
                add(p + "ffn_down_exps.weight", experts, d, ffn)
            else:
                add(p + "ffn_gate.weight", ffn, d)
                add(p + "ffn_up.weight", ffn, d)
                add(p + "ffn_down.weight", d, ffn)
        a = arch + "."
        self.metadata = [
            ("general.architecture", STRING, arch), (a + "block_count", U32, layers),
            (a + "context_length", U32, context), (a + "embedding_length", U32, d),
            (a + "attention.head_count", U32, heads), (a + "attention.head_count_kv", U32, kv),
            (a + "attention.key_length", U32, hd), (a + "attention.value_length", U32, hd),
            (a + "attention.layer_norm_rms_epsilon", F32, 1e-5),
            (a + "rope.freq_base", F32, 10000.0), (a + "rope.dimension_count", U32, hd),
            (a + "feed_forward_length", U32, ffn)]
        if experts:
            self.metadata += [(a + "expert_count", U32, experts), (a + "expert_used_count", U32, k)]
        if arch == "qwen3moe":
            self.metadata.append((a + "expert_feed_forward_length", U32, ffn))

    def file_order(self, name, w):
        """Rows of q and k as the file has them."""
        if self.arch != "llama" or not name.endswith(("attn_q.weight", "attn_k.weight")):
            return w
        return interleave(w, self.heads if "attn_q" in name else self.kv)

    def tensors(self, kind_of=lambda name: "F32"):
        """kind_of gives the type of each matrix; vectors and router are F32."""
        out = []
        for name, w in self.weights.items():
            plain = w.ndim == 1 or "ffn_gate_inp" in name
            out.append(tensor(name, self.file_order(name, w), "F32" if plain else kind_of(name)))
        return out

    def checkpoint(self):
        """The same model as a Hugging Face checkpoint: (config, tensors)."""
        m = {key.split(".", 1)[1]: v for key, _, v in self.metadata}
        moe = self.experts > 0
        kind = {"llama": "mixtral" if moe else "llama", "qwen3moe": "qwen3_moe"}.get(self.arch,
                                                                                     self.arch)
        config = {"model_type": kind, "hidden_size": m["embedding_length"],
                  "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
                  "num_key_value_heads": self.kv, "head_dim": m["attention.key_length"],
                  "intermediate_size": m["feed_forward_length"], "hidden_act": "silu",
                  "vocab_size": self.weights["token_embd.weight"].shape[0],
                  "max_position_embeddings": m["context_length"], "rms_norm_eps": float(
                      np.float32(m["attention.layer_norm_rms_epsilon"])),
                  "rope_theta": m["rope.freq_base"], "tie_word_embeddings": self.tied}
        if moe:
            config["num_local_experts" if kind == "mixtral" else "num_experts"] = self.experts
            config["num_experts_per_tok"] = m["expert_used_count"]
            config["moe_intermediate_size"] = m["feed_forward_length"]
            config["norm_topk_prob"] = kind != "olmoe"
        return config, {n: t for name, w in self.weights.items()
                        for n, t in checkpoint_tensors(kind, name, w)}


PLAIN = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight":
         "model.norm.weight", "output.weight": "lm_head.weight"}
LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
         "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}


def checkpoint_tensors(kind, name, w):
    """What Hugging Face calls a tensor; an expert stack becomes its experts."""
    if name in PLAIN:
        return [(PLAIN[name], w)]
    _, layer, part, ending = name.split(".")
    p = "model.layers.%s." % layer
    mixtral = kind == "mixtral"
    if part == "ffn_gate_inp":
        return [(p + ("block_sparse_moe.gate." if mixtral else "mlp.gate.") + ending, w)]
    if part.endswith("_exps"):
        matrix = part[4:-5]
        inner = ("block_sparse_moe.experts.%d.", {"gate": "w1", "up": "w3", "down": "w2"}[matrix]) \
            if mixtral else ("mlp.experts.%d.", matrix + "_proj")
        return [(p + inner[0] % e + inner[1] + ".weight", x) for e, x in enumerate(w)]
    return [(p + LAYER[part] + "." + ending, w)]
