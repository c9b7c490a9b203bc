"""Trains one model as a run file says, and exports it.

    python3 -m train.train RUN.json -o DIR [--text FOLDER] [--device cpu|cuda]

DIR gets state.pt (where a killed run goes on), log.csv, loss.svg and, at the end, model/: the
checkpoint for vflow-convert. A step depends on nothing but the weights, the optimizer and its
number, so that a run that was killed and started again ends in the same weights.
"""

import argparse
import contextlib
import csv
import io
import json
import math
import os
import sys
import time
from dataclasses import asdict, dataclass, fields

import torch

from train import checkpoint, data, plot
from train.config import Config
from train.files import replace, write_new
from train.model import Model
from train.tokenizer import Tokenizer

COLUMNS = ("step", "tokens", "lr", "train_nll", "valid_nll", "valid_ppl", "imbalance")


@dataclass
class Recipe:
    """The "training" part of a run file."""

    steps: int = 1000
    batch: int = 16
    length: int = 128
    learning_rate: float = 1e-3
    last_rate: float = 0.1  # of learning_rate, at the end of the cosine
    warmup: int = 50
    weight_decay: float = 0.1
    clip: float = 1.0
    balance: float = 0.01  # weight of the experts' imbalance in the loss
    seed: int = 0
    evaluate_every: int = 200
    valid_tokens: int = 32768
    save_every: int = 100
    precision: str = "auto"  # f32, bf16 (autocast), auto: bf16 on a GPU

    @classmethod
    def parse(cls, raw):
        known = {f.name for f in fields(cls)}
        for key in raw:
            if key not in known:
                raise ValueError(f"training: unknown key {key}")
        recipe = cls(**raw)
        if recipe.precision not in ("auto", "f32", "bf16"):
            raise ValueError(f"training: precision is {recipe.precision}, allowed: auto, f32, bf16")
        return recipe

    def rate(self, step):
        """Linear warmup, then a cosine down to last_rate."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        share = self.last_rate + (1 - self.last_rate) * 0.5 * (1 + math.cos(math.pi * done))
        return self.learning_rate * share


class Run:
    """spec: {"model": config.json, "training": Recipe, "data": {"train", "valid", "tokenizer"}}"""

    def __init__(self, spec, directory, text=".", device="cpu"):
        self.spec, self.directory, self.device = spec, directory, device
        self.recipe = Recipe.parse(spec.get("training", {}))
        self.config = Config.parse(spec["model"])
        places = {k: os.path.join(text, v) for k, v in spec["data"].items()}
        self.tokenizer_path = places["tokenizer"]
        tokenizer = Tokenizer(self.tokenizer_path)
        if len(tokenizer.vocab) > self.config.vocab_size:
            raise ValueError(f"vocab_size is {self.config.vocab_size}, at least "
                             f"{len(tokenizer.vocab)}: {self.tokenizer_path} has as many")
        self.train_tokens = data.read_tokens(places["train"], tokenizer)
        self.valid_tokens = data.read_tokens(places["valid"], tokenizer)
        torch.manual_seed(self.recipe.seed)
        self.model = Model(self.config).to(device)
        self.optimizer = optimizer(self.model, self.recipe)
        self.step = 0
        self.recent, self.rows = [], []  # (nll, imbalance) since the last row of the log
        os.makedirs(directory, exist_ok=True)
        self._load()

    def train(self, deadline=math.inf):
        """True when all is done and exported; False when time.monotonic() got to deadline."""
        r = self.recipe
        while self.step < r.steps:
            self.recent.append(self._advance())
            if self.step % r.evaluate_every == 0 or self.step == r.steps:
                self._log()
            late = time.monotonic() > deadline
            if self.step % r.save_every == 0 or self.step == r.steps or late:
                self._save()
            if late and self.step < r.steps:
                return False
        self._finish()
        return True

    def _advance(self):
        """One step; (mean negative log-likelihood, imbalance)."""
        r = self.recipe
        for group in self.optimizer.param_groups:
            group["lr"] = r.rate(self.step)
        inputs, targets = data.batch_at(self.train_tokens, self.step, r.seed, r.batch, r.length)
        with self._autocast():
            nll, imbalance = self.model.loss(inputs.to(self.device), targets.to(self.device))
        if not torch.isfinite(nll):
            raise ArithmeticError(f"step {self.step}: the loss is {nll.item()}")
        self.optimizer.zero_grad(set_to_none=True)
        (nll + r.balance * imbalance).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), r.clip)
        self.optimizer.step()
        self.step += 1
        return nll.item(), imbalance.item()

    def _autocast(self):
        kind = self.recipe.precision
        if kind == "bf16" or kind == "auto" and self.device.startswith("cuda"):
            return torch.autocast(self.device.split(":")[0], dtype=torch.bfloat16)
        return contextlib.nullcontext()

    @torch.no_grad()
    def evaluate(self):
        """Mean negative log-likelihood over the first windows of the held-out text."""
        r, total, count = self.recipe, 0.0, 0
        for inputs, targets in data.held_out(self.valid_tokens, r.valid_tokens, r.batch, r.length):
            with self._autocast():
                nll, _ = self.model.loss(inputs.to(self.device), targets.to(self.device))
            total, count = total + nll.item() * targets.numel(), count + targets.numel()
        return total / count

    # -- what is kept

    def _log(self):
        r, valid_nll = self.recipe, self.evaluate()
        train_nll, imbalance = (sum(part) / len(part) for part in zip(*self.recent))
        self.recent = []
        tokens = self.step * r.batch * r.length
        row = (self.step, tokens, r.rate(self.step - 1), train_nll, valid_nll,
               math.exp(valid_nll), imbalance)  # fmt: skip
        self.rows.append([f"{v:.6g}" if isinstance(v, float) else str(v) for v in row])
        print(f"step {self.step}/{r.steps}: training {train_nll:.4f}, held out {valid_nll:.4f}, "
              f"perplexity {math.exp(valid_nll):.3f}", file=sys.stderr, flush=True)

    def _write_log(self):
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerows([COLUMNS, *self.rows])
        replace(self._path("log.csv"), table.getvalue().encode())
        curves = {name: [(float(row[0]), float(row[COLUMNS.index(key)])) for row in self.rows]
                  for name, key in (("training", "train_nll"), ("held out", "valid_nll"))}
        title = os.path.basename(os.path.normpath(self.directory))
        svg = plot.chart(title, "step", "negative log-likelihood", curves)
        replace(self._path("loss.svg"), svg.encode())

    def _save(self):
        state = {
            "step": self.step,
            "rows": self.rows,
            "recent": self.recent,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "spec": self._identity(),
        }
        write_new(self._path("state.pt"), lambda f: torch.save(state, f))
        self._write_log()

    def _load(self):
        if not os.path.exists(self._path("state.pt")):
            return
        state = torch.load(self._path("state.pt"), map_location=self.device)
        if state["spec"] != self._identity():
            raise ValueError(f"{self.directory} holds another run: its model or training differ")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.rows, self.recent = state["step"], state["rows"], state["recent"]

    def _identity(self):
        return json.dumps({"model": self.spec["model"], "training": asdict(self.recipe)},
                          sort_keys=True)  # fmt: skip

    def _finish(self):
        self._write_log()
        checkpoint.write(self._path("model"), self.spec["model"], self.model,
                         tokenizer=self.tokenizer_path)  # fmt: skip

    def _path(self, name):
        return os.path.join(self.directory, name)


def optimizer(model, recipe):
    """AdamW; vectors (norms, couplings) don't decay."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay},
              {"params": vectors, "weight_decay": 0.0}]  # fmt: skip
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95))


def main():
    parser = argparse.ArgumentParser(prog="train.train", description=__doc__.split("\n")[0])
    parser.add_argument("run", help='JSON: "model" (a config.json), "training", "data"')
    parser.add_argument("-o", "--output", required=True, help="folder of the run")
    parser.add_argument("--text", default=".", help="folder that the data's paths start from (.)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="threads of a CPU (all); part of a run's bits")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        with open(args.run) as f:
            Run(json.load(f), args.output, args.text, args.device).train()
    except (OSError, ValueError, ArithmeticError) as e:
        sys.exit(f"train: {args.run}: {e}")


if __name__ == "__main__":
    main()
