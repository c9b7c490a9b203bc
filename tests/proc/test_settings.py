"""Settings of a run from every source, what overrides what, and that `plan` and `generate` describe
the same run, on machines of one to four nodes (hwloc's synthetic topologies)."""
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from proc import COORDINATOR, HOME, convert, done, environment, ok, run, shared

MODEL = convert(shared("models", "tiny_arch2_4"))
CONFIG = os.path.join(shared("models", "tiny_arch2_4"), "config.json")


def settings_file(name, settings):
    path = os.path.join(HOME, name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(settings if isinstance(settings, str) else json.dumps(settings))
    return path


def with_env(**variables):
    env = dict(environment())
    env.update(variables)
    return env


def plan(*options, env=None):
    p = run([COORDINATOR, "plan", "--bandwidth", "10", "--json", *options], check=True, env=env)
    return json.loads(p.stdout)


def planned(*options, env=None):
    return plan("--model", MODEL, *options, env=env)["memory"]


# ---- what overrides what -------------------------------------------------------------------------

FILE = settings_file("ctx.json", {"ctx": 48, "batch": 3, "model": MODEL})
ENV = with_env(VFLOW_CTX="40", VFLOW_BATCH="2", VFLOW_PREFILL_CHUNK="7")
m = planned(env=ENV)
ok((m["context"], m["sequences"], m["columns"]) == (40, 2, 7), "the environment overrides the defaults")
m = planned("--settings", FILE, env=ENV)
ok((m["context"], m["sequences"], m["columns"]) == (48, 3, 7),
   "a file overrides the environment")
m = planned("--settings", FILE, "--ctx", "56", env=ENV)
ok((m["context"], m["sequences"]) == (56, 3), "the command line overrides the file")
m = plan("--settings=" + FILE)["memory"]
ok(m["context"] == 48, "a file names the model, too")
p = plan("--config", CONFIG, "--settings", FILE)
ok(p["source"] == CONFIG and p["memory"]["context"] == 48,
   "a model of a file gives way to --config of plan")

for command, rest in (("generate", ["--tokens", "1,2", "--max-tokens", "1"]),
                      ("score", ["--tokens", "1,2"])):
    for option in ("--settings", "--config"):
        p = run([COORDINATOR, command, option, FILE, *rest])
        ok(p.returncode == 0 and p.stdout, "%s %s FILE" % (command, option))
    p = run([COORDINATOR, command, "--config", FILE, "--settings", FILE, *rest])
    ok(p.returncode == 2 and b"one settings file" in p.stderr, p.stderr.decode().strip())
    for name, text, words in (
            ("key.json", {"seeds": 1}, ["'seeds' found", "prefill-chunk"]),
            ("word.json", {"kernel": "mmx"}, ["kernel", "'mmx' found", "vnni"]),
            ("range.json", {"batch": 1025}, ["batch", "'1025' found", "1 to 1024"]),
            ("type.json", {"batch": [1]}, ["batch", "an array found", "a whole number"]),
            ("torn.json", '{"batch": 1', ["torn.json"])):
        path = settings_file(name, text)
        p = run([COORDINATOR, command, "--model", MODEL, "--settings", path, *rest])
        said = p.stderr.decode()
        ok(p.returncode == 3 and not p.stdout and said.count("\n") == 1 and path in said and
           all(w in said for w in words), "%s: %s" % (command, said.strip()))
p = run([COORDINATOR, "serve", "--config", settings_file("word.json", {"io": "none"})])
ok(p.returncode == 3 and b"direct, buffered" in p.stderr, "serve: " + p.stderr.decode().strip())
p = run([COORDINATOR, "plan", "--model", MODEL], env=with_env(VFLOW_KV="f8"))
ok(p.returncode == 2 and b"VFLOW_KV: 'f8' found, allowed: auto, f16, f32" in p.stderr,
   p.stderr.decode().strip())

# ---- plan and generate describe the same run -----------------------------------------------------

MACHINES = ("numa:1 core:2 pu:1", "numa:2 core:3 pu:2", "numa:4 core:2 pu:1")
OPTIONS = ([], ["--experts", "stream", "--expert-cache", "64K", "--io-workers", "2"],
           ["--stage-workers", "3", "--threads", "1", "--activations", "f32", "--ctx", "64"],
           ["--batch", "2", "--prefill-chunk", "5", "--memory", "1G"])


def sentence(stderr):
    found = re.search(r"the run: (.*)", stderr)
    return found.group(1) if found else stderr


for machine in MACHINES:
    env = with_env(HWLOC_SYNTHETIC=machine, HWLOC_THISSYSTEM="0")
    nodes, cores = (int(n) for n in re.match(r"numa:(\d) core:(\d)", machine).groups())
    for options in OPTIONS:
        p = plan("--model", MODEL, *options, env=env)
        g = run([COORDINATOR, "generate", "-v", "--model", MODEL, "--tokens", "1,2,3",
                 "--max-tokens", "2", "--json", *options], check=True, env=env)
        ok(p["run"] == sentence(g.stderr.decode()), "%s %s: %s" % (machine, options, p["run"]))
        if not options:
            threads = p["placement"]["worker_threads"]  # fewer where a control group has a quota
            ok(len(threads) == nodes and all(1 <= t <= cores for t in threads),
               "%s: a stage worker for each node, threads for its cores" % machine)
done()
