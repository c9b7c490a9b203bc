"""What the tests of train/ share: the package on the path, a skip without PyTorch, small texts."""

import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import tap  # noqa: E402

try:
    import torch
except ImportError:
    tap.skip_all("PyTorch isn't installed")

SOURCE = tap.source_dir()
sys.path.insert(0, SOURCE)
sys.path.insert(0, os.path.join(SOURCE, "tests", "reference"))
torch.set_num_threads(1)

PARTS = (
    ("The", "A", "One", "Some"), ("small", "red", "old", "happy", "naïve", "sleepy"),
    ("cat", "dog", "bird", "girl", "wolf", "boy"), ("saw", "chased", "liked", "didn't see"),
    ("the moon", "7 balls", "a tree", "the café", "his house", "1234 stars"),
)  # fmt: skip


def story(count, seed):
    """Documents of short sentences that a small model soon learns."""
    draw = random.Random(seed)
    sentences = [" ".join(draw.choice(words) for words in PARTS) + "." for _ in range(count)]
    return "\n<|endoftext|>\n".join("  ".join(sentences[i : i + 8]) for i in range(0, count, 8))


def write_texts(folder, train, valid, count=600):
    for name, seed in ((train, 1), (valid, 2)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(story(count, seed))
