"""An independent reader of .vflow and .cflow files, written from docs/FORMAT.md alone.

It shares nothing with the C code: own header parsing, own record layout, own quantisation, own
XXH3. The tests compare the C writer with it to the byte. Needs numpy.
"""
import json
import struct

import numpy as np

QUANTS = {0: ("f32", 2048), 1: ("f16", 1024), 2: ("q8", 544), 3: ("q4", 288)}
MIXED = 4
QUANT_NUMBERS = {name: number for number, (name, _) in QUANTS.items()}
SECTIONS = ["config", "tokenizer", "tensors", "groups", "experts", "vectors", "stream", "bank",
            "tiles"]
NO_LAYER = 0xFFFFFFFF
NAMES = ["embed", "head", "final_norm", "attn_norm", "ffn_norm", "q", "k", "v", "o", "q_bias",
         "k_bias", "v_bias", "q_norm", "k_norm", "gate", "up", "down", "router", "expert_gate",
         "expert_up", "expert_down", "query_coupling", "mlp_hidden_coupling",
         "mlp_output_coupling", "moe_hidden_coupling", "moe_output_coupling"]


def ceil_div(a, b):
    return -(-a // b)


def round_up(a, b):
    return ceil_div(a, b) * b


# ---- XXH3, 64 bits, seed 0, default secret (from its published specification) ----

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
M64 = (1 << 64) - 1
P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
       0x27D4EB2F165667C5)


def _u32(b, i):
    return int.from_bytes(b[i:i + 4], "little")


def _u64(b, i):
    return int.from_bytes(b[i:i + 8], "little")


def _fold(a, b):
    p = a * b
    return (p & M64) ^ (p >> 64)


def _avalanche(h):
    h ^= h >> 37
    h = h * 0x165667919E3779F9 & M64
    return h ^ h >> 32


def _avalanche64(h):
    h ^= h >> 33
    h = h * P64[1] & M64
    h ^= h >> 29
    h = h * P64[2] & M64
    return h ^ h >> 32


def _short(d):
    n = len(d)
    if n == 0:
        return _avalanche64(_u64(SECRET, 56) ^ _u64(SECRET, 64))
    if n <= 3:
        word = d[0] << 16 | d[n >> 1] << 24 | d[n - 1] | n << 8
        return _avalanche64(word ^ _u32(SECRET, 0) ^ _u32(SECRET, 4))
    if n <= 8:
        word = _u32(d, n - 4) + (_u32(d, 0) << 32)
        h = word ^ _u64(SECRET, 8) ^ _u64(SECRET, 16)
        h ^= ((h << 49 | h >> 15) ^ (h << 24 | h >> 40)) & M64
        h = h * 0x9FB21C651E98DF25 & M64
        h ^= (h >> 35) + n
        h = h * 0x9FB21C651E98DF25 & M64
        return h ^ h >> 28
    low = _u64(d, 0) ^ _u64(SECRET, 24) ^ _u64(SECRET, 32)
    high = _u64(d, n - 8) ^ _u64(SECRET, 40) ^ _u64(SECRET, 48)
    swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
    return _avalanche((n + swapped + high + _fold(low, high)) & M64)


def _mix16(d, i, s):
    return _fold(_u64(d, i) ^ _u64(SECRET, s), _u64(d, i + 8) ^ _u64(SECRET, s + 8))


def _medium(d):
    n = len(d)
    acc = n * P64[0] & M64
    if n <= 128:
        for k in range((n - 1) // 32, -1, -1):
            acc += _mix16(d, 16 * k, 32 * k) + _mix16(d, n - 16 * (k + 1), 32 * k + 16)
        return _avalanche(acc & M64)
    for k in range(8):
        acc += _mix16(d, 16 * k, 16 * k)
    acc = _avalanche(acc & M64)
    for k in range(8, n // 16):
        acc += _mix16(d, 16 * k, 16 * (k - 8) + 3)
    acc += _mix16(d, n - 16, 136 - 17)
    return _avalanche(acc & M64)


def _stripe_sums(stripes, secrets):
    """What each stripe adds to the eight accumulators: [n, 8] u64 -> [n, 8] u64."""
    keyed = stripes ^ secrets
    product = (keyed & np.uint64(0xFFFFFFFF)) * (keyed >> np.uint64(32))
    return product + stripes[:, [1, 0, 3, 2, 5, 4, 7, 6]]


def _long(d):
    n = len(d)
    per_block = (len(SECRET) - 64) // 8
    starts = np.frombuffer(b"".join(SECRET[8 * k:8 * k + 64] for k in range(per_block)),
                           "<u8").reshape(per_block, 8)
    block_bytes = 64 * per_block
    blocks = (n - 1) // block_bytes
    acc = np.array([P32[2], P64[0], P64[1], P64[2], P64[3], P32[1], P64[4], P32[0]], "<u8")
    scramble = np.frombuffer(SECRET[-64:], "<u8")
    words = np.frombuffer(d[:blocks * block_bytes], "<u8").reshape(-1, 8)
    for b in range(blocks):
        part = words[b * per_block:(b + 1) * per_block]
        acc = acc + _stripe_sums(part, starts).sum(axis=0, dtype=np.uint64)
        acc = (acc ^ (acc >> np.uint64(47)) ^ scramble) * np.uint64(P32[0])
    rest = d[blocks * block_bytes:]
    count = (len(rest) - 1) // 64
    if count:
        part = np.frombuffer(rest[:64 * count], "<u8").reshape(-1, 8)
        acc = acc + _stripe_sums(part, starts[:count]).sum(axis=0, dtype=np.uint64)
    last_secret = np.frombuffer(SECRET[-64 - 7:-7], "<u8").reshape(1, 8)
    acc = acc + _stripe_sums(np.frombuffer(d[n - 64:], "<u8").reshape(1, 8), last_secret)[0]
    a = [int(x) for x in acc]
    h = n * P64[0] & M64
    for k in range(4):
        h += _fold(a[2 * k] ^ _u64(SECRET, 11 + 16 * k), a[2 * k + 1] ^ _u64(SECRET, 19 + 16 * k))
    return _avalanche(h & M64)


def xxh3(data):
    d = bytes(data)
    if len(d) <= 16:
        return _short(d)
    return _medium(d) if len(d) <= 240 else _long(d)


# ---- matrices ----

def matrix_bytes(quant, rows, cols):
    return ceil_div(rows, 16) * ceil_div(cols, 32) * QUANTS[quant][1]


def record_index(rows, cols, b, g):
    blocks, groups = ceil_div(rows, 16), ceil_div(cols, 32)
    stripe, tile = b - b % 8, g - g % 8
    stripe_blocks, tile_groups = min(8, blocks - stripe), min(8, groups - tile)
    return stripe * groups + tile * stripe_blocks + (b - stripe) * tile_groups + (g - tile)


def record_order(rows, cols):
    """[blocks, groups] -> where each record lies."""
    blocks, groups = ceil_div(rows, 16), ceil_div(cols, 32)
    b, g = np.meshgrid(np.arange(blocks), np.arange(groups), indexing="ij")
    stripe, tile = b - b % 8, g - g % 8
    return (stripe * groups + tile * np.minimum(8, blocks - stripe)
            + (b - stripe) * np.minimum(8, groups - tile) + (g - tile))


def quantise(w, bits):
    """[..., 32] f32 -> scales f16 [...], codes (around 0) [..., 32]."""
    low, high = (-8, 7) if bits == 4 else (-127, 127)
    scale = (np.abs(w).max(axis=-1) / np.float32(high)).astype(np.float16)
    wide = scale.astype(np.float32)[..., None]
    safe = np.where(wide == 0, np.float32(1), wide)
    code = np.clip(np.rint(w.astype(np.float32) / safe), low, high)
    return scale, np.where(wide == 0, 0, code).astype(np.int8)


def pack_matrix(w, quant):
    """f32 [rows, cols] -> the bytes of FORMAT.md."""
    rows, cols = w.shape
    blocks, groups = ceil_div(rows, 16), ceil_div(cols, 32)
    padded = np.zeros((blocks * 16, groups * 32), np.float32)
    padded[:rows, :cols] = w
    # [block, group, row, column]
    r = padded.reshape(blocks, 16, groups, 32).transpose(0, 2, 1, 3)
    name, size = QUANTS[quant]
    records = np.zeros((blocks, groups, size), np.uint8)
    if name in ("f32", "f16"):
        kind = "<f4" if name == "f32" else "<f2"
        by_column = np.ascontiguousarray(r.transpose(0, 1, 3, 2).astype(kind))
        records[:] = by_column.view(np.uint8).reshape(blocks, groups, size)
    else:
        bits = 4 if name == "q4" else 8
        scale, code = quantise(r, bits)
        records[:, :, :32] = np.ascontiguousarray(scale.astype("<f2")).view(np.uint8)
        if bits == 4:
            nibble = (code + 8).astype(np.uint8)
            code = nibble[..., :16] | nibble[..., 16:] << 4
        # byte 64j + 4r + c is column 4j + c of row r
        quads = code.reshape(blocks, groups, 16, -1, 4).transpose(0, 1, 3, 2, 4)
        records[:, :, 32:] = np.ascontiguousarray(quads).view(np.uint8).reshape(blocks, groups, -1)
    out = np.empty((blocks * groups, size), np.uint8)
    out[record_order(rows, cols).ravel()] = records.reshape(-1, size)
    return out.tobytes()


def unpack_matrix(data, rows, cols, quant):
    """The reverse: the weights as f32 [rows, cols]."""
    blocks, groups = ceil_div(rows, 16), ceil_div(cols, 32)
    name, size = QUANTS[quant]
    raw = np.frombuffer(data, np.uint8).reshape(-1, size)
    records = raw[record_order(rows, cols).ravel()]
    if name in ("f32", "f16"):
        kind = "<f4" if name == "f32" else "<f2"
        w = np.ascontiguousarray(records).view(kind).reshape(blocks, groups, 32, 16)
        w = w.transpose(0, 1, 3, 2).astype(np.float32)
    else:
        scale = np.ascontiguousarray(records[:, :32]).view("<f2").astype(np.float32)
        body = records[:, 32:].reshape(len(records), -1, 16, 4).transpose(0, 2, 1, 3)
        body = np.ascontiguousarray(body).reshape(len(records), 16, -1)
        if name == "q4":
            body = np.concatenate([body & 15, body >> 4], axis=2).astype(np.int8) - 8
        else:
            body = body.view(np.int8)
        w = scale[:, :, None] * body.astype(np.float32)
        w = w.reshape(blocks, groups, 16, 32)
    return w.transpose(0, 2, 1, 3).reshape(blocks * 16, groups * 32)[:rows, :cols]


# ---- the file ----

class Tensor:
    def __init__(self, fields):
        (self.kind, self.quant, self.flags, self.layer, self.flow, self.rows, self.cols,
         self.reserved, self.offset, self.bytes, self.xxh3, self.tile_begin,
         self.tile_count) = fields
        self.is_vector = self.flags == 1

    @property
    def key(self):
        return (NAMES[self.kind], None if self.layer == NO_LAYER else self.layer, self.flow)


class ModelFile:
    """Everything is checked as FORMAT.md says; a fault raises ValueError."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        self.read_header()
        self.read_sections()
        self.config = json.loads(self.section("config"))
        self.chat = self.config.pop("chat", None)
        self.check_chat()
        self.tokenizer = self.section("tokenizer")
        self.read_tables()
        self.check_tensors()
        self.check_groups()
        self.check_experts()
        self.check_tiles()
        self.check_cover()

    def need(self, condition, text):
        if not condition:
            raise ValueError(text)

    def read_header(self):
        d = self.data
        self.need(len(d) >= 512, "header")
        self.format = {b"VFLOW\0\0\0": "vflow", b"CFLOW\0\0\0": "cflow"}.get(d[:8])
        self.need(self.format, "magic")
        version, header_bytes, file_bytes = struct.unpack_from("<IIQ", d, 8)
        self.need((version, header_bytes, file_bytes) == (6, 512, len(d)), "version or sizes")
        self.need(struct.unpack_from("<HHHH", d, 24) == (128, 256, 16, 32), "tile geometry")
        self.quant = d[32]
        self.need(self.quant in QUANTS or self.quant == MIXED, "quant")
        self.expert_quants = list(d[33:36]) if self.quant == MIXED else [self.quant] * 3
        self.need(all(q in QUANTS for q in self.expert_quants), "expert quants")
        count, self.tile_count, self.expert_bytes, reserved = struct.unpack_from("<IQQQ", d, 36)
        self.need(count == 9 and reserved == 0, "section count")
        self.need(self.quant == MIXED or not any(d[33:36]), "expert quants")
        self.need(not any(d[352:504]), "reserved")
        self.fingerprint = _u64(d, 504)
        self.need(self.fingerprint == xxh3(d[:504]), "header checksum")

    def read_sections(self):
        self.sections = {}
        end = 512
        for i, name in enumerate(SECTIONS):
            kind, reserved, offset, size, checksum = struct.unpack_from("<IIQQQ", self.data,
                                                                        64 + 32 * i)
            align = 4096 if name in ("stream", "bank") else 64
            self.need((kind, reserved, offset) == (i + 1, 0, round_up(end, align)), name)
            self.need(offset + size <= len(self.data), name)
            self.need(not any(self.data[end:offset]), "padding before " + name)
            self.sections[name] = (offset, size)
            expected = 0 if align == 4096 else xxh3(self.section(name))
            self.need(checksum == expected, "checksum of " + name)
            end = offset + size
        self.need(end == len(self.data), "end of file")

    def section(self, name):
        offset, size = self.sections[name]
        return self.data[offset:offset + size]

    def check_chat(self):
        c = {} if self.chat is None else dict(self.chat)
        for key in ("template", "bos_token", "eos_token"):
            self.need(isinstance(c.pop(key, ""), str), "chat " + key)
        for key in ("add_bos_token", "add_eos_token"):
            self.need(isinstance(c.pop(key, False), bool), "chat " + key)
        named = c.pop("templates", {})
        self.need(all(isinstance(t, str) for t in named.values()), "chat templates")
        self.need(not c, "a key of chat")

    def read_tables(self):
        tensors = struct.iter_unpack("<HBBIIIIIQQQQQ", self.section("tensors"))
        self.tensors = [Tensor(fields) for fields in tensors]
        self.by_key = {t.key: t for t in self.tensors}
        self.need(len(self.by_key) == len(self.tensors), "a tensor twice")
        self.groups = list(struct.iter_unpack("<IIIIQQQQ", self.section("groups")))
        self.experts = list(struct.iter_unpack("<QQQ", self.section("experts")))
        self.tiles = np.frombuffer(self.section("tiles"), dtype=[
            ("row", "<u4"), ("col", "<u4"), ("rows", "<u2"), ("cols", "<u2"), ("low", "<u4")])
        self.need(len(self.tiles) == self.tile_count, "tile count")

    def expected_shapes(self):
        """{key: shape} that the config implies, without experts."""
        c = self.config
        d, vocab, hd = c["hidden_size"], c["vocab_size"], c["head_dim"]
        q, kv = c["num_attention_heads"] * hd, c["num_key_value_heads"] * hd
        ffn, experts = c["intermediate_size"], c["num_experts"]
        fe, flows, coupled = c["moe_intermediate_size"], range(1, c["num_flows"]), c["flow_coupling"]
        shapes = {("embed", None, j): (vocab, d) for j in range(c["num_flows"])}
        shapes["final_norm", None, 0] = (d,)
        if not c["tie_word_embeddings"]:
            shapes["head", None, 0] = (vocab, d)
        for layer in range(c["num_hidden_layers"]):
            own = [0] + [j for j in flows if c["flow_specific_dense"]]
            s = {("attn_norm", 0): (d,), ("ffn_norm", 0): (d,), ("k", 0): (kv, d), ("v", 0): (kv, d)}
            for j in own:
                s["q", j], s["o", j] = (q, d), (d, q)
                if ffn:
                    s["up", j], s["down", j] = (ffn, d), (d, ffn)
                    if c["mlp_gated"]:
                        s["gate", j] = (ffn, d)
            if c.get("attention_bias"):
                s["q_bias", 0], s["k_bias", 0], s["v_bias", 0] = (q,), (kv,), (kv,)
            if c["qk_norm"]:
                whole = c["qk_norm"] == "whole"
                s["q_norm", 0], s["k_norm", 0] = ((q,), (kv,)) if whole else ((hd,), (hd,))
            if experts:
                s["router", 0] = (experts, d)
            for j in flows:
                if "query" in coupled:
                    s["query_coupling", j] = (q,)
                for part, size, out in (("mlp", ffn, ffn), ("moe", experts, fe)):
                    if size and "mlp_hidden" in coupled:
                        s[part + "_hidden_coupling", j] = (out,)
                    if size and "mlp_output" in coupled:
                        s[part + "_output_coupling", j] = (d,)
            shapes.update({(name, layer, j): shape for (name, j), shape in s.items()})
        return shapes

    def check_tensors(self):
        shapes = self.expected_shapes()
        self.need(set(shapes) == set(self.by_key), "tensor set")
        tile = 0
        for t in self.tensors:
            shape = shapes[t.key]
            vector = len(shape) == 1
            f32 = vector or t.key[0] == "router"
            self.need((t.rows, t.cols) == ((1,) + shape if vector else shape), "shape")
            self.need((t.flags, t.reserved) == (int(vector), 0), "flags")
            allowed = [0] if f32 else list(QUANTS) if self.quant == MIXED else [self.quant]
            self.need(t.quant in allowed, "quant")
            size = 4 * t.cols if vector else matrix_bytes(t.quant, t.rows, t.cols)
            begin, room = self.sections["vectors" if vector else "stream"]
            self.need(t.bytes == size and t.offset % 64 == 0, "bytes or alignment")
            self.need(begin <= t.offset and t.offset + size <= begin + room, "range")
            self.need(xxh3(self.bytes_of(t)) == t.xxh3, "checksum of %s" % (t.key,))
            count = 0 if vector else ceil_div(t.rows, 128) * ceil_div(t.cols, 256)
            self.need((t.tile_begin, t.tile_count) == (0 if vector else tile, count), "tiles")
            tile += count
        self.expert_tile_begin = tile

    def check_groups(self):
        layer = 0
        streams = []
        for begin, end, sliding, reserved, attn, attn_bytes, dense, dense_bytes in self.groups:
            self.need(begin == layer < end and reserved == 0 and sliding in (0, 1), "group")
            self.need(self.format == "vflow" or end == begin + 1, "cflow group")
            self.need(attn % 4096 == 0 and dense % 4096 == 0, "group alignment")
            for t in self.tensors:
                if t.is_vector or not begin <= t.layer < end:
                    continue
                a, b = ((attn, attn_bytes) if t.key[0] in ("q", "k", "v", "o")
                        else (dense, dense_bytes))
                self.need(a <= t.offset and t.offset + t.bytes <= a + b, "group member")
            streams += [(attn, attn + attn_bytes), (dense, dense + dense_bytes)]
            layer = end
        self.need(layer == self.config["num_hidden_layers"], "groups")
        streams.sort()
        self.need(all(a[1] <= b[0] for a, b in zip(streams, streams[1:])), "group overlap")

    def expert_parts(self):
        """[(name, offset in the record, rows, cols)] and the record's bytes."""
        d, fe = self.config["hidden_size"], self.config["moe_intermediate_size"]
        parts, at = [], 0
        shapes = (("gate", fe, d), ("up", fe, d), ("down", d, fe))
        for (name, rows, cols), quant in zip(shapes, self.expert_quants):
            parts.append((name, at, rows, cols))
            at += round_up(matrix_bytes(quant, rows, cols), 64)
        return parts, round_up(at, 4096)

    def expert(self, layer, expert):
        """The record's bytes: entry layer * E + expert of the index."""
        offset, size, _ = self.experts[layer * self.config["num_experts"] + expert]
        return self.data[offset:offset + size]

    def check_experts(self):
        count = self.config["num_experts"] * self.config["num_hidden_layers"]
        self.need(len(self.experts) == count, "expert index")
        if not count:
            self.need(self.expert_bytes == 0, "expert_bytes")
            return
        self.need(self.expert_bytes == self.expert_parts()[1], "expert_bytes")
        begin, room = self.sections["bank" if self.format == "vflow" else "stream"]
        for i, (offset, size, checksum) in enumerate(self.experts):
            self.need(offset % 4096 == 0 and size == self.expert_bytes, "expert %d" % i)
            self.need(begin <= offset and offset + size <= begin + room, "expert range")
            self.need(xxh3(self.data[offset:offset + size]) == checksum, "expert checksum")

    def check_matrix_tiles(self, entry, offset, quant, rows, cols):
        at = offset
        for row in range(0, rows, 128):
            for col in range(0, cols, 256):
                h, w = min(128, rows - row), min(256, cols - col)
                size = matrix_bytes(quant, h, w)
                tile = tuple(int(x) for x in self.tiles[entry])
                low = xxh3(self.data[at:at + size]) & 0xFFFFFFFF
                self.need(tile == (row, col, h, w, low), "tile %d" % entry)
                at += size
                entry += 1
        return entry

    def check_tiles(self):
        for t in self.tensors:
            if not t.is_vector:
                self.check_matrix_tiles(t.tile_begin, t.offset, t.quant, t.rows, t.cols)
        entry = self.expert_tile_begin
        for offset, _, _ in self.experts:
            for (_, at, rows, cols), quant in zip(self.expert_parts()[0], self.expert_quants):
                entry = self.check_matrix_tiles(entry, offset + at, quant, rows, cols)
        self.need(entry == self.tile_count, "tile directory's end")

    def check_cover(self):
        """Tensors and experts don't overlap; what is between them is zero."""
        ranges = [(t.offset, t.offset + t.bytes) for t in self.tensors]
        ranges += [(offset, offset + size) for offset, size, _ in self.experts]
        end = self.sections["vectors"][0]
        for a, b in sorted(ranges) + [(self.sections["tiles"][0],) * 2]:
            self.need(a >= end, "overlap")
            self.need(not any(self.data[end:a]), "padding")
            end = b

    def bytes_of(self, tensor):
        return self.data[tensor.offset:tensor.offset + tensor.bytes]

    def weights(self, tensor):
        if tensor.is_vector:
            return np.frombuffer(self.bytes_of(tensor), "<f4")
        return unpack_matrix(self.bytes_of(tensor), tensor.rows, tensor.cols, tensor.quant)
