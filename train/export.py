"""Exports a run's weights as they are now, e.g. in bf16 or before its end.

    python3 -m train.export RUN_DIR -o CHECKPOINT_DIR [--dtype f32|bf16] [--tokenizer FILE]
"""

import argparse
import json
import os

import torch

from train import checkpoint
from train.config import Config
from train.model import Model


def main():
    parser = argparse.ArgumentParser(prog="train.export", description=__doc__.split("\n")[0])
    parser.add_argument("run", help="folder of a run (its state.pt)")
    parser.add_argument("-o", "--output", required=True, help="folder of the checkpoint")
    parser.add_argument("--dtype", choices=checkpoint.DTYPES, default="bf16")
    parser.add_argument("--tokenizer", help="tokenizer.json to put beside it")
    args = parser.parse_args()
    state = torch.load(os.path.join(args.run, "state.pt"), map_location="cpu")
    raw = json.loads(state["spec"])["model"]
    model = Model(Config.parse(raw))
    model.load_state_dict(state["model"])
    checkpoint.write(args.output, raw, model, args.dtype, args.tokenizer)


if __name__ == "__main__":
    main()
