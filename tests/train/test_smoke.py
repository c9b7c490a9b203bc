"""A short training of every style and flow form: the held-out loss falls, and the engine agrees
with PyTorch on the exported checkpoint's log-probabilities, and on the tokens of a text.
"""

import json
import os

import support
import tap
import torch

import engine
from configs import VOCAB, all_configs
from train import checkpoint
from train.tokenizer import Tokenizer, count_words, description, learn
from train.train import Run

TOLERANCE = 1e-3
TRAINING = {
    "steps": 24, "batch": 8, "length": 32, "learning_rate": 5e-3, "warmup": 5,
    "evaluate_every": 24, "valid_tokens": 512, "save_every": 24,
}  # fmt: skip
FILES = {"train": "train.txt", "valid": "valid.txt", "tokenizer": "tokenizer.json"}
TEXT = (
    "The naïve cat\u00a0saw  1234²  stars;\n\n it's 早い, they'll\tsay: "
    "<|endoftext|> Ünïcode!  \u2003 ½ cafés\n\t end"
)
FALL = 1.0  # nats from the uniform guess over the vocabulary at least


def learn_tokenizer(folder):
    with open(os.path.join(folder, FILES["train"]), encoding="utf-8") as f:
        merges = learn(count_words([f.read()]), VOCAB)
    with open(os.path.join(folder, FILES["tokenizer"]), "w", encoding="utf-8") as f:
        json.dump(description(merges), f)
    return Tokenizer(os.path.join(folder, FILES["tokenizer"]))


def train(name, raw, folder, **training):
    spec = {"model": raw, "training": {**TRAINING, **training}, "data": FILES}
    run = Run(spec, os.path.join(folder, name), folder)
    before = run.evaluate()
    run.train()
    return before, run.evaluate()


def check_text(raw, folder, tokenizer):
    """The engine's log-probability of each token of a text: it reads tokenizer.json as we do."""
    path = os.path.join(folder, "text.txt")
    with open(path, "w", encoding="utf-8") as f:
        f.write(TEXT)
    config = {**raw, "num_hidden_layers": 1, "max_position_embeddings": 512}
    train("text", config, folder, steps=10, save_every=10)
    source = os.path.join(folder, "text", "model")
    engine.convert(source, source + ".vflow", "f32")
    done = engine.call_ok("vflow-coordinator", "score", "--model", source + ".vflow",
                          "--file", path, "--activations", "f32", "--json")  # fmt: skip
    got = torch.tensor(json.loads(done.stdout)["token_logp"])
    ids = torch.tensor([tokenizer.end_of_text, *tokenizer.encode(TEXT)])
    _, model = checkpoint.read(source)
    with torch.no_grad():
        want = model.log_probs(ids[None, :-1])[0].gather(-1, ids[1:, None])[:, 0]
    tap.ok(got.shape == want.shape, f"a text of {len(ids)} tokens has {len(got) + 1} in the engine")
    worst = engine.worst_difference(got.numpy(), want.numpy())
    tap.ok(worst < TOLERANCE, f"and their log-probabilities, {worst:.1e} apart")


def check(name, raw, folder, tokens):
    before, after = train(name, raw, folder)
    tap.ok(after < before - FALL, f"{name}: the held-out loss falls, {before:.3f} to {after:.3f}")
    path = os.path.join(folder, name, "model")
    engine.convert(path, path + ".vflow", "f32")
    got = engine.score(path + ".vflow", tokens[:40])
    _, model = checkpoint.read(path)
    with torch.no_grad():
        want = model.log_probs(torch.tensor([tokens[:40]]))[0].numpy()
    worst = engine.worst_difference(got, want)
    tap.ok(worst < TOLERANCE, f"{name}: the engine's log-probabilities, {worst:.1e} apart")


def check_half_precision(raw, folder):
    """What a GPU does, on the CPU: bf16 autocast, and a checkpoint in bf16."""
    before, after = train("half", raw, folder, precision="bf16")
    tap.ok(after < before - FALL, f"bf16 autocast: {before:.3f} to {after:.3f}")
    source, half = os.path.join(folder, "half", "model"), os.path.join(folder, "half_model")
    config, model = checkpoint.read(source)
    checkpoint.write(half, config, model, "bf16")
    _, again = checkpoint.read(half)
    pairs = zip(model.state_dict().values(), again.state_dict().values())
    same = all(torch.equal(a.bfloat16().float(), b) for a, b in pairs)
    tap.ok(same, "a bf16 checkpoint holds the rounded weights")
    engine.convert(half, half + ".vflow", "q4")
    tap.ok(os.path.getsize(half + ".vflow") > 0, "and is taken by the converter")


def main():
    engine.require_programs("vflow-convert", "vflow-coordinator")
    with engine.scratch_dir() as folder:
        support.write_texts(folder, FILES["train"], FILES["valid"])
        tokenizer = learn_tokenizer(folder)
        tokens = tokenizer.encode(support.story(16, 3))
        configs = all_configs()
        for name, raw in configs.items():
            try:
                check(name, raw, folder, tokens)
            except engine.EngineError as e:
                tap.ok(False, f"{name}: {e}")
        check_text(configs["sequential_dense"], folder, tokenizer)
        check_half_precision(configs["dual_combined"], folder)
    tap.done()


main()
