"""train/'s models against the engine: random weights of every style and flow form, exported,
converted with --quant f32, scored; log-probabilities within 1e-3 at every token of the vocabulary.
"""

import os

import support  # noqa: F401  (before torch and train: it finds them)
import tap
import torch

import engine
from configs import VOCAB, all_configs
from train import checkpoint
from train.config import Config
from train.model import Model

TOLERANCE = 1e-3


def lively(model, generator):
    """Weights that leave nothing at its neutral start: norms, couplings, sharper matrices."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(noise / p.shape[1] ** 0.5 if p.dim() == 2 else p + 0.3 * noise)
            if "embed" in name or "lm_head" in name:
                p.mul_(2)
    return model


def check(name, raw, folder, seed):
    generator = torch.Generator().manual_seed(seed)
    model = lively(Model(Config.parse(raw)), generator)
    tokens = torch.randint(VOCAB, (40,), generator=generator)
    path = os.path.join(folder, name)
    checkpoint.write(path, raw, model)
    engine.convert(path, path + ".vflow", "f32")
    got = engine.score(path + ".vflow", tokens.tolist())
    with torch.no_grad():
        want = model.log_probs(tokens[None])[0].numpy()
    worst = engine.worst_difference(got, want)
    spread = want.std()
    tap.ok(worst < TOLERANCE and spread > 0.3, f"{name}: {worst:.1e} apart, spread {spread:.1f}")


def main():
    engine.require_programs("vflow-convert", "vflow-coordinator")
    with engine.scratch_dir() as folder:
        for seed, (name, raw) in enumerate(all_configs().items()):
            try:
                check(name, raw, folder, seed)
            except engine.EngineError as e:
                tap.ok(False, f"{name}: {e}")
    tap.done()


main()
