"""The studies' files hold valid models; the runner keeps to its budget, goes on, and trains a run
that two studies share once; its tables say what the logs say.
"""

import json
import os
import tempfile

import support
import tap

from configs import BASE, COMBINED
from train import studies
from train.tokenizer import count_words, description, learn

TRAINING = {"steps": 6, "batch": 2, "length": 16, "evaluate_every": 3, "valid_tokens": 64}
HOUR = 3600


def write(folder, name, data):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(data, f)


def prepare(folder):
    support.write_texts(folder, "train.txt", "valid.txt", 80)
    merges = learn(count_words([support.story(80, 1)]), BASE["vocab_size"])
    write(folder, "tokenizer.json", description(merges))
    data = {"train": "train.txt", "valid": "valid.txt", "tokenizer": "tokenizer.json"}
    write(folder, "base.json", {"model": BASE, "training": TRAINING, "data": data})
    plain, delayed = {"name": "plain", "model": {}}, {"name": "delayed", "model": COMBINED}
    write(folder, "1_a.json", {"title": "A", "seeds": [0, 1], "runs": [plain, delayed]})
    again = {"name": "undelayed", "model": {"dense_delay": 0}, "paper": 6.5}
    write(folder, "2_b.json", {"title": "B", "seeds": [0], "runs": [again]})


def check_runner(folder):
    results = os.path.join(folder, "results")
    loaded = studies.load(results, folder)
    studies.run_all(loaded, folder, 0, "cpu")
    done = [j for _, jobs in loaded.values() for j in jobs if j.done()]
    tap.ok(not done, "without time nothing is finished")
    studies.run_all(loaded, folder, HOUR, "cpu")
    tap.ok(all(j.done() for _, jobs in loaded.values() for j in jobs), "with time, all is")
    tap.ok(len(os.listdir(results)) == 4, "the run that two studies share is one")
    path = os.path.join(folder, "E.md")
    studies.report(loaded, path)
    with open(path) as f:
        report = f.read()
    ppl = float(loaded["2_b"][1][0].last_row()["valid_ppl"])
    tap.ok(f"| undelayed | 192 | 0 | {ppl:.3f} |" in report, "the table has the log's perplexity")
    tap.ok("| delayed | 192 | 0, 1 |" in report, "and names both seeds")
    plot = os.path.join(folder, "experiments_1_a.svg")
    tap.ok(os.path.getsize(plot) > 500, "a plot is beside it")


def main():
    shipped = studies.load("nowhere")
    tap.ok(len(shipped) == 4, f"studies: {', '.join(shipped)}")
    path = {j.name: studies.critical_bytes(j.spec["model"]) for j in shipped["4_delays"][1]}
    tap.ok(path["dense_0"] > path["dense_1"] > path["dense_3"], "a delay shortens the path")
    with tempfile.TemporaryDirectory(prefix="vflow-studies-") as folder:
        prepare(folder)
        check_runner(folder)
    tap.done()


main()
