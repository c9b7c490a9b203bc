"""Byte-level BPE: learns a vocabulary from text, writes it as tokenizer.json, encodes with it.

    python3 -m train.tokenizer TEXT... -o tokenizer.json [--vocab 2048]

Words are split as GPT-2 does. Learning counts each different word once and, after a merge, visits
only the words that hold the merged pair.
"""

import argparse
import functools
import heapq
import json
import re
import sys
import unicodedata
from collections import Counter, defaultdict

from train.files import replace

END_OF_TEXT = "<|endoftext|>"


def byte_symbols():
    """The printable character that stands for each byte: itself, or one from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols, spare = {b: chr(b) for b in plain}, 256
    for b in range(256):
        if b not in symbols:
            symbols[b] = chr(spare)
            spare += 1
    return [symbols[b] for b in range(256)]


BYTES = byte_symbols()


def character_class(initial):
    """The code points of a general category (L, N) for use between [ and ]; re has no \\p{L}."""
    ranges, start = [], None
    for at in range(sys.maxunicode + 2):
        inside = at <= sys.maxunicode and unicodedata.category(chr(at))[0] == initial
        if inside and start is None:
            start = at
        elif not inside and start is not None:
            ranges.append(f"\\U{start:08x}-\\U{at - 1:08x}")
            start = None
    return "".join(ranges)


@functools.lru_cache
def word_pattern():
    letters, numbers = character_class("L"), character_class("N")
    space = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
    return re.compile(
        f"'s|'t|'re|'ve|'m|'ll|'d| ?[{letters}]+| ?[{numbers}]+| ?[^{space}{letters}{numbers}]+"
        f"|[{space}]+(?![^{space}])|[{space}]+"
    )


def symbols_of(word):
    return [BYTES[b] for b in word.encode()]


def count_words(texts):
    pattern, counts = word_pattern(), Counter()
    for text in texts:
        for document in text.split(END_OF_TEXT):
            counts.update(pattern.findall(document))
    return counts


def learn(counts, vocab_size):
    """Merges in order of learning: the most frequent pair; of equals, the first by its symbols."""
    words = [symbols_of(w) for w in counts]
    weights = list(counts.values())
    pairs, holders = Counter(), defaultdict(set)
    for i, word in enumerate(words):
        for pair in zip(word, word[1:]):
            pairs[pair] += weights[i]
            holders[pair].add(i)
    queue = [(-n, pair) for pair, n in pairs.items()]
    heapq.heapify(queue)
    merges = []
    while queue and len(merges) < vocab_size - len(BYTES) - 1:
        n, pair = heapq.heappop(queue)
        if -n != pairs[pair]:  # counted anew since; its true count is in the queue
            continue
        if -n < 2:
            break
        merges.append(pair)
        changed = set()
        for i in holders.pop(pair):
            before, words[i] = words[i], merge(words[i], pair)
            for old in zip(before, before[1:]):
                pairs[old] -= weights[i]
                changed.add(old)
            for new in zip(words[i], words[i][1:]):
                pairs[new] += weights[i]
                holders[new].add(i)
                changed.add(new)
        for each in changed:
            if pairs[each] > 0:
                heapq.heappush(queue, (-pairs[each], each))
    return merges


def merge(word, pair):
    out, i = [], 0
    while i < len(word):
        if i + 1 < len(word) and word[i] == pair[0] and word[i + 1] == pair[1]:
            out.append(pair[0] + pair[1])
            i += 2
        else:
            out.append(word[i])
            i += 1
    return out


def description(merges):
    """tokenizer.json: the end of text is token 0, and a text begins with it."""
    special = {"id": 0, "content": END_OF_TEXT, "special": True, "normalized": False}
    special.update(single_word=False, lstrip=False, rstrip=False)
    # Bytes in the order of their symbols; two ways to build one symbol string share a token.
    tokens = [END_OF_TEXT, *sorted(BYTES), *(a + b for a, b in merges)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    level["use_regex"] = True
    end = {"SpecialToken": {"id": END_OF_TEXT, "type_id": 0}}
    first, second = ({"Sequence": {"id": s, "type_id": i}} for i, s in enumerate("AB"))
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [special],
        "normalizer": None, "pre_tokenizer": level,
        "post_processor": {
            "type": "TemplateProcessing", "single": [end, first], "pair": [end, first, second],
            "special_tokens": {
                END_OF_TEXT: {"id": END_OF_TEXT, "ids": [0], "tokens": [END_OF_TEXT]},
            },
        },
        "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "vocab": numbered(tokens),
            "merges": [f"{a} {b}" for a, b in merges],
        },
    }  # fmt: skip


def numbered(tokens):
    vocab = {}
    for token in tokens:
        vocab.setdefault(token, len(vocab))
    return vocab


class Tokenizer:
    """Encodes with a tokenizer.json of the kind that this module writes."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            data = json.load(f)
        kind = data["model"]["type"], (data["pre_tokenizer"] or {}).get("type")
        if kind != ("BPE", "ByteLevel"):
            raise ValueError(f"{path}: {kind[0]} after {kind[1]}, allowed: BPE after ByteLevel")
        self.vocab = data["model"]["vocab"]
        pairs = (m.split(" ") if isinstance(m, str) else m for m in data["model"]["merges"])
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(pairs)}
        self.end_of_text = self.vocab[END_OF_TEXT]
        self._pattern, self._words = word_pattern(), {}

    def encode(self, text):
        """Token ids; END_OF_TEXT in the text is its token. None is added."""
        ids = []
        for i, document in enumerate(text.split(END_OF_TEXT)):
            ids += [self.end_of_text] if i else []
            for word in self._pattern.findall(document):
                ids += self._words.get(word) or self._encode_word(word)
        return ids

    def _encode_word(self, word):
        symbols = symbols_of(word)
        while len(symbols) > 1:
            worst = len(self.ranks)
            best = min(zip(symbols, symbols[1:]), key=lambda pair: self.ranks.get(pair, worst))
            if best not in self.ranks:
                break
            symbols = merge(symbols, best)
        self._words[word] = [self.vocab[s] for s in symbols]
        return self._words[word]


def main():
    parser = argparse.ArgumentParser(prog="train.tokenizer", description="Learns a byte-level BPE.")
    parser.add_argument("text", nargs="+", help="UTF-8 text, <|endoftext|> between documents")
    parser.add_argument("-o", "--output", required=True, help="the tokenizer.json to write")
    parser.add_argument("--vocab", type=int, default=2048, help="tokens at most (2048)")
    args = parser.parse_args()
    if args.vocab <= len(BYTES):
        parser.error(f"--vocab is {args.vocab}, at least {len(BYTES) + 1}")
    texts = []
    for path in args.text:
        with open(path, encoding="utf-8", newline="") as f:
            texts.append(f.read())
    merges = learn(count_words(texts), args.vocab)
    data = json.dumps(description(merges), ensure_ascii=False, indent=1)
    replace(args.output, data.encode())
    print(f"{args.output}: {len(Tokenizer(args.output).vocab)} tokens", file=sys.stderr)


if __name__ == "__main__":
    main()
