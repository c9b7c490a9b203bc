"""A run that is killed with kill -9 and started again ends in the same weights and the same log as
one that nobody disturbed, bit for bit.
"""

import json
import os
import subprocess
import sys
import tempfile

import support
import tap

from configs import BASE, COMBINED, DUAL
from train.tokenizer import count_words, description, learn

TRAINING = {
    "steps": 40, "batch": 4, "length": 24, "warmup": 5, "evaluate_every": 7, "valid_tokens": 256,
    "save_every": 5,
}  # fmt: skip
KILLS = (1, 3)  # rows of the log after which a run is killed, one after the other


def start(folder, name):
    command = [sys.executable, "-m", "train.train", os.path.join(folder, "run.json"), "--text",
               folder, "-o", os.path.join(folder, name), "--threads", "1",
               "--device", "cpu"]  # fmt: skip
    return subprocess.Popen(command, cwd=support.SOURCE, stderr=subprocess.PIPE, text=True)


def kill_after(process, rows):
    """Kills it right after so many rows; True where it was still at work."""
    seen = [line for line, _ in zip(process.stderr, range(rows))]
    process.kill()
    process.stderr.read()
    return process.wait() == -9 and len(seen) == rows


def finish(process):
    _, said = process.communicate(timeout=100)
    if process.returncode:
        tap.note(said[-2000:])
    return process.returncode == 0


def read(folder, name, *path):
    with open(os.path.join(folder, name, *path), "rb") as f:
        return f.read()


def prepare(folder):
    support.write_texts(folder, "train.txt", "valid.txt", 200)
    merges = learn(count_words([support.story(200, 1)]), BASE["vocab_size"])
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(description(merges), f)
    data = {"train": "train.txt", "valid": "valid.txt", "tokenizer": "tokenizer.json"}
    spec = {"model": {**BASE, **COMBINED, **DUAL}, "training": TRAINING, "data": data}
    with open(os.path.join(folder, "run.json"), "w") as f:
        json.dump(spec, f)


def main():
    with tempfile.TemporaryDirectory(prefix="vflow-train-") as folder:
        prepare(folder)
        tap.ok(finish(start(folder, "whole")), "a run ends")
        for rows in KILLS:
            tap.ok(kill_after(start(folder, "killed"), rows), f"killed after {rows} rows")
            missing = not os.path.exists(os.path.join(folder, "killed", "model"))
            tap.ok(missing, "no checkpoint is there yet")
        tap.ok(finish(start(folder, "killed")), "started again, it ends")
        for path in (("model", "model.safetensors"), ("log.csv",)):
            same = read(folder, "whole", *path) == read(folder, "killed", *path)
            tap.ok(same, f"{path[-1]} is the same")
    tap.done()


main()
