"""The studies of train/experiments: their runs, one after the other, and tables of what is done.

A study file has a title, seeds and runs; a run changes keys of base.json's model and training. Runs
that are the same in two studies are trained once: a run's folder is named by what it is.
"""

import csv
import glob
import hashlib
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass

from train import plot
from train.config import Config
from train.files import replace
from train.train import Run

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "experiments")
Q4_BYTES = 18 / 32  # of a weight, its group's scale included


@dataclass
class Job:
    study: str
    name: str
    seed: int
    spec: dict
    paper: float
    directory: str

    def cost(self):
        """In token layers of a flow: what orders the list, no more."""
        model, training = self.spec["model"], self.spec["training"]
        depth = model["num_hidden_layers"] * model.get("fixed_point_iterations", 1)
        tokens = training["steps"] * training["batch"] * training["length"]
        return tokens * depth * model.get("num_flows", 1)

    def done(self):
        return os.path.exists(os.path.join(self.directory, "model", "config.json"))

    def last_row(self):
        with open(os.path.join(self.directory, "log.csv")) as f:
            return list(csv.DictReader(f))[-1]


def read_json(path):
    with open(path) as f:
        return json.load(f)


def load(results, folder=FOLDER):
    """{study file's name: (title, [Job])}, with every model's configuration checked."""
    base, studies = read_json(os.path.join(folder, "base.json")), {}
    for path in sorted(glob.glob(os.path.join(folder, "[0-9]*.json"))):
        name, study = os.path.splitext(os.path.basename(path))[0], read_json(path)
        jobs = [job(name, base, run, seed, results)
                for run in study["runs"] for seed in study["seeds"]]  # fmt: skip
        studies[name] = study["title"], jobs
    return studies


def job(study, base, run, seed, results):
    spec = {
        "model": {**base["model"], **run["model"]},
        "training": {**base["training"], **run.get("training", {}), "seed": seed},
        "data": base["data"],
    }
    whole = {**spec, "model": asdict(Config.parse(spec["model"]))}
    digest = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:8]
    directory = os.path.join(results, f"{whole['model']['combine_style']}_s{seed}_{digest}")
    return Job(study, run["name"], seed, spec, run.get("paper"), directory)


def run_all(studies, text, seconds, device):
    """Trains what isn't done, shortest first, all first seeds before the second ones."""
    deadline = time.monotonic() + seconds
    jobs = {j.directory: j for _, js in studies.values() for j in js if not j.done()}
    for each in sorted(jobs.values(), key=lambda j: (j.seed, j.cost())):
        if time.monotonic() > deadline:
            return
        print(f"{each.study}: {each.name}, seed {each.seed}", file=sys.stderr, flush=True)
        Run(each.spec, each.directory, text, device).train(deadline)


# ------------------------------------------------------------------------------------------------
# Tables
# ------------------------------------------------------------------------------------------------


def critical_bytes(raw):
    """Bytes of Q4 weights on a token's critical path by the closed form: each stream over its delay
    plus one, summed over the layers."""
    c = Config.parse(raw)
    gated = 3 if c.mlp_gated else 2
    width = (c.num_attention_heads + c.num_key_value_heads) * c.head_dim
    attention = 2 * c.hidden_size * width / (c.attention_delay + 1)
    dense = gated * c.hidden_size * c.intermediate_size / (c.dense_delay + 1)
    chosen = c.num_experts_per_tok if c.num_experts else 0
    experts = chosen * gated * c.hidden_size * c.moe_intermediate_size / (c.expert_delay + 1)
    depth = c.num_hidden_layers * c.fixed_point_iterations
    return (attention + dense + experts) * depth * Q4_BYTES


def finished(jobs):
    """{name: [Job]} of the runs that are done, in the order of the study."""
    out = {}
    for each in jobs:
        if each.done():
            out.setdefault(each.name, []).append(each)
    return out


def perplexities(jobs):
    return [float(j.last_row()["valid_ppl"]) for j in jobs]


def point(jobs):
    return critical_bytes(jobs[0].spec["model"]) / 1e6, statistics.mean(perplexities(jobs))


def table(title, jobs):
    names = len({j.name for j in jobs})
    rows = finished(jobs)
    out = [f"## {title}", "", f"{len(rows)} of {names} runs have a result.", ""]
    if not rows:
        return out
    out += ["| run | tokens | seeds | perplexity | spread | critical path, MB | the paper's |",
            "| --- | ---: | --- | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for name, done in rows.items():
        values = perplexities(done)
        spread = f"{max(values) - min(values):.3f}" if len(values) > 1 else ""
        seeds = ", ".join(str(j.seed) for j in done)
        size = critical_bytes(done[0].spec["model"]) / 1e6
        out.append(f"| {name} | {done[0].last_row()['tokens']} | {seeds} | "
                   f"{statistics.mean(values):.3f} | {spread} | {size:.3f} | "
                   f"{done[0].paper or ''} |")  # fmt: skip
    return [*out, ""]


def report(studies, path):
    """The tables of every study with a result, and a plot of each beside them."""
    out = ["# Experiments", "",
           "Held-out perplexity of small models by PyTorch, one table a study, written by",
           "`train/run` (docs/TRAINING.md has the command). A paper's figure is of its own, larger",
           "models: orders may be compared, values may not.", ""]  # fmt: skip
    for name, (title, jobs) in studies.items():
        out += table(title, jobs)
        rows = finished(jobs)
        if rows:
            points = {n: [point(js)] for n, js in rows.items()}
            x_name = "MB of weights on the critical path"
            svg = plot.chart(title, x_name, "perplexity", points, joined=False)
            picture = os.path.join(os.path.dirname(path), f"experiments_{name}.svg")
            replace(picture, svg.encode())
            out += [f"![{title}](experiments_{name}.svg)", ""]
    replace(path, ("\n".join(out).rstrip() + "\n").encode())
