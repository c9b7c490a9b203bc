"""Wrong usage and bad input: each case ends in one sentence on stderr, nothing on stdout, and the
right exit status, without leaving a file."""
import os
import socket
import stat
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from proc import COORDINATOR, HOME, convert, done, note, ok, run, run_dirs, shared

TINY = shared("models", "tiny_arch2_4")
MODEL = convert(TINY)
NO_TOKENIZER = convert(shared("golden", "sequential_dense"))


def file_with(name, data):
    path = os.path.join(HOME, name)
    with open(path, "wb") as f:
        f.write(data)
    return path


def model_bytes():
    with open(MODEL, "rb") as f:
        return f.read()


LATIN1 = file_with("latin1.txt", b"caf\xe9")
LONG = file_with("long.txt", b"Once upon a time there was a girl. " * 200)
EMPTY = file_with("empty.txt", b"")
TRUNCATED = file_with("truncated.vflow", model_bytes()[:-5000])
GARBAGE = file_with("garbage.vflow", b"not a model" * 100)
GGUF = file_with("a model.gguf", b"GGUF" + bytes(20))
FIFO = os.path.join(HOME, "a.fifo")
os.mkfifo(FIFO)
SOCKET = os.path.join(HOME, "a.socket")
socket.socket(socket.AF_UNIX).bind(SOCKET)
LINK = os.path.join(HOME, "a.link")
os.symlink("a.fifo", LINK)
READABLE = {"generate": ["-p", "x"], "score": ["--tokens", "1,2"]}

# (arguments, exit status, words of the sentence)
CASES = [
    ([], 2, ["a command is missing", "generate"]),
    (["sing"], 2, ["'sing'", "allowed: generate, score, serve, plan"]),
    (["generate"], 2, ["--model is missing"]),
    (["generate", "--model", MODEL], 2, ["-p TEXT, --prompt-file FILE or --tokens"]),
    (["generate", "--model", MODEL, "-p", "a", "--tokens", "1"], 2, ["-p TEXT, --prompt-file FILE or --tokens"]),
    (["generate", "--model", MODEL, "--colour", "red"], 2, ["unknown option '--colour'"]),
    (["generate", "--model"], 2, ["--model needs a value"]),
    (["generate", "--model", MODEL, "-p", "a", "extra"], 2, ["unexpected argument 'extra'"]),
    (["generate", "--model", MODEL, "--tokens", "1,x"], 2, ["--tokens", "token 1"]),
    (["generate", "--model", MODEL, "--tokens", "1,2048"], 2, ["2048", "0 to 2047"]),
    (["generate", "--model", MODEL, "--tokens", ""], 2, ["--tokens", "token 0"]),
    (["generate", "--model", MODEL, "-p", b"caf\xe9"], 2, ["-p", "UTF-8"]),
    (["generate", "--model", MODEL, "-p", "a", "--max-tokens", "-1"], 2, ["--max-tokens", "'-1'"]),
    (["generate", "--model", MODEL, "-p", "a", "--temperature", "nan"], 2, ["--temperature"]),
    (["generate", "--model", MODEL, "-p", "a", "--top-p", "1.5"], 2, ["--top-p", "1.5"]),
    (["generate", "--model", MODEL, "-p", "a", "--stop", ""], 2, ["stop"]),
    (["generate", "--model", MODEL, "-p", "a"] + ["--stop", "x"] * 9, 2, ["--stop", "9", "8"]),
    (["generate", "--model", NO_TOKENIZER, "-p", "a"], 2, ["no tokenizer", "--tokens"]),
    (["generate", "--model", NO_TOKENIZER, "--tokens", "1", "--stop", "a"], 2, ["no"]),
    (["generate", "--model", MODEL, "-p", "once " * 600], 1, ["at most 511", "512 positions"]),
    (["generate", "--model", MODEL, "-p", "a", "--ctx", "513"], 2, ["--ctx", "513", "512"]),
    (["generate", "--model", MODEL, "-p", "a", "--ctx", "0"], 2, ["--ctx", "'0'"]),
    (["generate", "--model", MODEL, "-p", "a", "--threads", "0"], 2, ["--threads", "'0'"]),
    (["generate", "--model", MODEL, "-p", "a", "--threads", "two"], 2, ["--threads", "'two'"]),
    (["generate", "--model", MODEL, "-p", "a", "--stage-workers", "7"], 2, ["7", "6"]),
    (["generate", "--model", MODEL, "-p", "a", "--stage-workers", "65"], 2, ["65", "64"]),
    (["generate", "--model", MODEL, "-p", "a", "--placement", "stripe"], 2,
     ["--placement", "'stripe'", "pipeline"]),
    (["generate", "--model", MODEL, "-p", "a", "--kernel", "neon"], 2, ["--kernel", "'neon'"]),
    (["generate", "--model", MODEL, "-p", "a", "--experts", "some"], 2, ["--experts", "'some'"]),
    (["generate", "--model", MODEL, "-p", "a", "--experts", "stream", "--expert-cache", "4K"], 2,
     ["--expert-cache", "4096", "one expert"]),
    (["generate", "--model", MODEL, "-p", "a", "--expert-cache", "lots"], 2, ["'lots'", "size"]),
    (["generate", "--model", MODEL, "-p", "a", "--experts", "resident", "--expert-cache", "1M"], 2,
     ["--expert-cache", "resident"]),
    (["score", "--model", MODEL], 2, ["--tokens 1,2,3 or --file"]),
    (["score", "--model", MODEL, "--file", LATIN1], 3, ["latin1.txt", "UTF-8"]),
    (["score", "--model", MODEL, "--file", LONG, "--ctx", "1"], 1, ["tokens", "context"]),
    *((command + ["--model", given], 3, [given, "vflow-convert " + from_ + " -o tiny_arch2_4.vflow"])
      for command in (["generate", "-p", "x"], ["score", "--tokens", "1"], ["serve"], ["plan"])
      for given, from_ in ((TINY, TINY), (TINY + "/model.safetensors", TINY + "/"))),
    (["generate", "-p", "x", "--model", GGUF], 3, ["GGUF", "vflow-convert", "-o 'a model.vflow'"]),
    (["score", "--model", MODEL, "--file", HOME + "/missing.txt"], 3, ["missing.txt"]),
    (["score", "--model", NO_TOKENIZER, "--file", LONG], 2, ["no tokenizer"]),
    (["score", "--model", MODEL, "--tokens", "1,2", "--logits", HOME + "/none/out.npy"], 1,
     ["none/out.npy"]),
    (["score", "--model", MODEL, "--file", FIFO], 3, ["a.fifo is a FIFO", "regular file"]),
    (["score", "--model", MODEL, "--file", ""], 3, ["name", "empty"]),
    (["plan", "--config", FIFO], 3, ["a.fifo is a FIFO", "regular file"]),
    (["plan", "--config", ""], 2, ["--config is empty"]),
    (["plan", "--model", ""], 2, ["--model is empty"]),
    (["plan", "--model", FIFO], 3, ["a.fifo is a FIFO", "regular file"]),
]
for command in (["score", "--model", MODEL, "--tokens", "1,2", "--logits"],
                ["plan", "--model", MODEL, "--svg"]):
    CASES += [(command + [path], 2, [os.path.basename(path) + " is a", what, "regular file"])
              for path, what in ((FIFO, "FIFO"), (SOCKET, "socket"), (LINK, "FIFO"),
                                 (HOME, "directory"))]
    CASES.append((command + [""], 2, ["name", "empty"]))
for command, words in READABLE.items():
    CASES += [
        ([command, "--model", HOME + "/missing.vflow", *words], 3, ["missing.vflow"]),
        ([command, "--model", HOME, *words], 3, [HOME]),
        ([command, "--model", TRUNCATED, *words], 3, ["truncated.vflow"]),
        ([command, "--model", GARBAGE, *words], 3, ["garbage.vflow"]),
        ([command, "--model", EMPTY, *words], 3, ["empty.txt"]),
        ([command, "--model", FIFO, *words], 3, ["a.fifo is a FIFO", "regular file"]),
        ([command, "--model", "", *words], 2, ["--model is empty"]),
    ]


def describe(arguments):
    words = [a if isinstance(a, str) else repr(a) for a in arguments]
    text = " ".join(w.replace(HOME + "/", "") for w in words)
    return text if len(text) < 90 else text[:86] + " ..."


def check(arguments, status, words):
    before = sorted(os.listdir(HOME))
    p = run([COORDINATOR, *arguments])
    err = p.stderr.decode(errors="replace")
    lines = err.strip().splitlines()
    good = (p.returncode == status and p.stdout == b"" and len(lines) == 1 and
            all(w in err for w in words) and sorted(os.listdir(HOME)) == before)
    if not ok(good, "status %d and a sentence: %s" % (status, describe(arguments))):
        note("status %d, stdout %r, stderr: %s" % (p.returncode, p.stdout[:80], err))


def check_help():
    for words in (["--help"], ["generate", "--help"], ["score", "--help"], ["serve", "--help"],
                  ["plan", "--help"], ["--version"], ["generate", "--version"]):
        p = run([COORDINATOR, *words])
        ok(p.returncode == 0 and len(p.stdout) > 10 and p.stderr == b"",
           "%s prints to stdout" % " ".join(words))


def check_no_stdout():
    """Without a stdout nothing else may take its place: results go nowhere, and that is an error."""
    p = run(["sh", "-c", 'exec "$0" "$@" >&-', COORDINATOR, "generate", "--model", MODEL, "-p", "a",
             "--max-tokens", "3"])
    ok(p.returncode == 1 and b"can't write to stdout" in p.stderr, "a closed stdout is an error")


def check_link():
    """What a link leads to is replaced, not the link."""
    target, link = os.path.join(HOME, "rows.npy"), os.path.join(HOME, "rows.link")
    os.symlink("rows.npy", link)
    for what in ("missing", "there"):
        p = run([COORDINATOR, "score", "--model", MODEL, "--tokens", "1,2", "--logits", link])
        ok(p.returncode == 0 and os.readlink(link) == "rows.npy" and os.path.getsize(target) > 128,
           "--logits through a link whose target is %s" % what)
        with open(target, "wb"):
            pass
    os.unlink(link)
    os.unlink(target)


def check_full_stdout():
    for words in (["plan", "--model", MODEL], ["plan", "--model", MODEL, "--json"],
                  ["plan", "--table"], ["plan", "--table", "--json"],
                  ["score", "--model", MODEL, "--tokens", "1,2", "--json"]):
        with open("/dev/full", "wb") as full:
            p = subprocess.run([COORDINATOR, *words], stdout=full, stderr=subprocess.PIPE, timeout=60)
        if not ok(p.returncode == 1 and b"can't write to stdout" in p.stderr,
                  "%s to a full stdout: status 1" % describe(words)):
            note("%s %s" % (p.returncode, p.stderr))


if __name__ == "__main__":
    for case in CASES:
        check(*case)
    check_help()
    check_no_stdout()
    check_full_stdout()
    check_link()
    ok(stat.S_ISFIFO(os.stat(FIFO).st_mode) and stat.S_ISSOCK(os.stat(SOCKET).st_mode) and
       os.path.islink(LINK), "what isn't a file is still there")
    ok(not run_dirs(), "no run directory is left")
    done()
