"""Text as one row of tokens, and the batches that a step takes from it."""

import numpy as np
import torch

from train.tokenizer import END_OF_TEXT


def read_tokens(path, tokenizer):
    """Every document of a text file, each behind the end-of-text token."""
    with open(path, encoding="utf-8", newline="") as f:
        documents = [d.strip() for d in f.read().split(END_OF_TEXT)]
    ids = []
    for document in filter(None, documents):
        ids.append(tokenizer.end_of_text)
        ids += tokenizer.encode(document)
    return np.array(ids, dtype=np.int64)


def batch_at(tokens, step, seed, batch, length):
    """(inputs, targets) [batch, length] of a step: windows drawn from (seed, step) alone, so that a
    run that goes on sees what it would have seen."""
    if len(tokens) <= length:
        raise ValueError(f"a text of {len(tokens)} tokens is shorter than a window of {length}")
    draw = np.random.Generator(np.random.Philox(key=[seed, step]))
    starts = draw.integers(0, len(tokens) - length, batch)
    return as_windows(tokens, starts, length)


def as_windows(tokens, starts, length):
    rows = torch.from_numpy(np.stack([tokens[s : s + length + 1] for s in starts]))
    return rows[:, :-1], rows[:, 1:]


def held_out(tokens, count, batch, length):
    """Batches of the first windows side by side: count tokens, or what there is."""
    starts = np.arange(0, min(count, len(tokens) - 1) - length + 1, length)
    if not len(starts):
        raise ValueError(f"held-out text: {len(tokens)} tokens, a window has {length}")
    for at in range(0, len(starts), batch):
        yield as_windows(tokens, starts[at : at + batch], length)
