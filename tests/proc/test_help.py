"""Help in all its shapes, versions, and the words that somebody nearly typed, of every program."""
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from proc import done, note, ok, run
import tap

SINGLE = ["vflow-convert", "vflow-inspect", "vflow-stage-worker", "vflow-io-worker"]
SEVERAL = {"vflow-coordinator": ["generate", "score", "serve", "plan"],
           "vflow-client": ["generate", "score", "status", "cancel", "keygen"],
           "vflow-bench": ["make-model", "ceiling", "matvec", "layout", "fused", "prefetch", "hop",
                           "decode", "flows", "formats", "workers", "record", "replay", "drive",
                           "overlap"]}
ALL = [[p] for p in SINGLE] + [[p, c] for p, list_ in SEVERAL.items() for c in list_]
# Nearly right, and what was meant; None: nothing is near enough to be named.
NEAR = [
    (["vflow-coordinator", "genrate"], "generate"), (["vflow-coordinator", "socre"], "score"),
    (["vflow-coordinator", "pl"], "plan"), (["vflow-coordinator", "zzz"], None),
    (["vflow-client", "stats"], "status"), (["vflow-bench", "cieling"], "ceiling"), (["vflow-client", "help", "keygem"], "keygen"),
    (["vflow-coordinator", "generate", "--thread", "2"], "--threads"),
    (["vflow-coordinator", "generate", "--expert-cahce=1G"], "--expert-cache"),
    (["vflow-coordinator", "serve", "--prefilchunk", "2"], "--prefill-chunk"),
    (["vflow-convert", "--qaunt", "q4"], "--quant"), (["vflow-convert", "--banana"], None),
    (["vflow-coordinator", "generate", "--kernel", "avx51"], "avx512"),
    (["vflow-coordinator", "generate", "--kv", "fp16"], "f16"),
    (["vflow-coordinator", "generate", "--" + "x" * 5000], None),
]


def call(argv):
    return run([tap.program(argv[0]), *argv[1:]])


def out(argv):
    p = call(argv)
    if not ok(p.returncode == 0 and p.stderr == b"", "status 0: " + " ".join(argv)):
        note("%d %r" % (p.returncode, p.stderr))
    return p.stdout.decode()


for command in ALL:
    text = out([*command, "--help"])
    name = " ".join(command)
    ok(text.startswith("usage: %s " % name) and "\noptions:\n" in text and
       max(map(len, text.splitlines())) <= 100, name + ": help fits 100 columns")
    ok(out([*command, "-h"]) == text, name + ": -h is --help")
    options = re.findall(r"^  (?:-\w, )?(--[a-z0-9-]+)", text, re.M)
    words = [line.split("\t") for line in out([*command, "--help=words"]).splitlines()]
    ok([w[0] for w in words if w[0].startswith("--")] == options and len(options) >= 2,
       name + ": the words to complete are the options of the help")
    page = out([*command, "--help=man"])
    ok(page.startswith('.TH "%s" 1 ' % name.upper().replace(" ", "-")) and
       re.findall(r"^\.SH (.*)$", page, re.M) ==
       ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "SEE ALSO"] and
       page.count("\n.TP\n") == len(options), name + ": a manual page with every option")
    brief = re.search(r"\.SH NAME\n(.*)\n", page).group(1)
    ok(brief.startswith(name.replace(" ", "-").replace("-", "\\-") + " \\- ") and
       "(" not in brief, name + ": its NAME is one clause")

for program, commands in SEVERAL.items():
    text = out([program, "--help"])
    ok(all(re.search(r"^  %s " % c, text, re.M) for c in commands), program + ": all commands")
    ok(out([program, "-h"]) == text == out([program, "help"]), program + ": -h, help, --help")
    for c in commands:
        ok(out([program, "help", c]) == out([program, c, "--help"]), "%s help %s" % (program, c))
    ok(out([program, "--help=words"]).split() == commands, program + ": commands to complete")
    ok(out([program, "--help=man"]).count("\n.TP\n") == len(commands), program + ": manual page")
    p = call([program])
    ok(p.returncode == 2 and all(c.encode() in p.stderr for c in commands) and
       p.stderr.count(b"\n") == 1, program + " alone: one line with the commands")

for program in [*SINGLE, *SEVERAL]:
    lines = out([program, "--version"]).splitlines()
    ok(re.fullmatch(program + r" \d+\.\d+\.\d+", lines[0]) and
       [line.split()[0] for line in lines[1:]] == ["commit", "build", "kernels"] and
       "scalar" in lines[3], program + " --version: commit, build, kernels")

for argv, meant in NEAR:
    p = call(argv)
    text = p.stderr.decode()
    hint = re.search(r"did you mean '(.*)'\?", text)
    if not ok(p.returncode == 2 and text.count("\n") == 1 and (hint and hint.group(1)) == meant,
              "%s: %s" % (" ".join(argv)[:60], meant)):
        note(text[:300])
for words in (["generate"], ["plan", "--config"], ["serve", "-m"]):
    p = run([tap.program("vflow-coordinator"), *words, "x", "--help"],
            env=dict(os.environ, VFLOW_KERNEL="steam"))
    ok(p.returncode == 0 and p.stdout.startswith(b"usage: "),
       "help doesn't wait for a sound environment: " + " ".join(words))
p = call(["vflow-convert"])
ok(p.returncode == 2 and b"missing: vflow-convert DIR" in p.stderr and b"?" not in p.stderr and
   p.stderr.count(b"\n") == 1, "a missing argument: the first line of the usage")
p = call(["vflow-convert", "--help=poem"])
ok(p.returncode == 2 and b"poem" in p.stderr, "another shape of help is refused")
done()
