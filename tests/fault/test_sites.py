"""The calls that every role makes for memory, maps, shared memory, sockets and writes are fault sites:
each is reached, ends in a sentence that says what was refused, with the right status, and leaves
nothing behind. Where a role has no such call, the fault doesn't strike and nothing is lost."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from proc import (CONVERT, COORDINATOR, HOME, convert, done, environment, note, ok, run, run_dirs,
                  shared, wait_until)

BIN = os.path.dirname(COORDINATOR)
CHECKPOINT = shared("models", "tiny_arch2_4")
MODEL = convert(CHECKPOINT)
OUT = os.path.join(HOME, "out.vflow")
GENERATE = [COORDINATOR, "generate", "--model", MODEL, "--tokens", "5,60,7", "--max-tokens", "8",
            "--temperature", "0", "--ignore-eos", "--experts", "stream", "--expert-cache", "84K"]
CONVERTING = [CONVERT, CHECKPOINT, "-o", OUT]
CLIENT = [os.path.join(BIN, "vflow-client"), "status", "--connect", "tcp://127.0.0.1:9", "--insecure",
          "--timeout", "5"]
KEYGEN = [os.path.join(BIN, "vflow-client"), "keygen", "--out", os.path.join(HOME, "key")]
MEMORY, NO_MEMORY, FULL = "no memory", "Cannot allocate memory", "No space left on device"

# site, fault, command, words of the sentence; status 1 each.
STRIKES = [
    ("coordinator.memory", "ENOMEM", GENERATE, MEMORY),
    ("coordinator.map", "ENOMEM", GENERATE, NO_MEMORY),
    ("coordinator.shm", "ENOMEM", GENERATE, NO_MEMORY),
    ("coordinator.socket", "ENOMEM", GENERATE, NO_MEMORY),
    ("coordinator.write", "ENOSPC", GENERATE, FULL),
    ("stage.memory", "ENOMEM", GENERATE, MEMORY),
    ("stage.map", "ENOMEM", GENERATE, NO_MEMORY),
    ("stage.shm", "ENOMEM", GENERATE, NO_MEMORY),
    ("stage.socket", "ENOMEM", GENERATE, NO_MEMORY),
    ("io.memory", "ENOMEM", GENERATE, MEMORY),
    ("io.map", "ENOMEM", GENERATE, NO_MEMORY),
    ("io.shm", "ENOMEM", GENERATE, NO_MEMORY),
    ("io.socket", "ENOMEM", GENERATE, NO_MEMORY),
    ("client.memory", "ENOMEM", CLIENT, MEMORY),
    ("client.socket", "ENOMEM", CLIENT, NO_MEMORY),
    ("client.write", "ENOSPC", KEYGEN, FULL),
    ("convert.memory", "ENOMEM", CONVERTING, MEMORY),
    ("convert.write", "ENOSPC", CONVERTING, FULL),
    ("inspect.memory", "ENOMEM", [os.path.join(BIN, "vflow-inspect"), MODEL], MEMORY),
    ("inspect.map", "ENOMEM", [os.path.join(BIN, "vflow-inspect"), MODEL], NO_MEMORY),
]


def left_behind():
    return run_dirs() + [n for n in os.listdir(HOME) if ".part-" in n or n == "out.vflow"]


def check(site, what, command, words):
    p = run(command, env=environment(VFLOW_FAULT="%s:1=%s" % (site, what)))
    text = p.stderr.decode()
    lines = text.splitlines()
    good = p.returncode == 1 and any(words in line for line in lines) and len(lines) <= 2
    if not ok(good, "%s=%s: status 1 and a sentence" % (site, what)):
        note("status %d: %s" % (p.returncode, text))
    wait_until(lambda: not left_behind(), 5)
    ok(not left_behind(), "%s=%s leaves nothing behind: %s" % (site, what, left_behind()))


if __name__ == "__main__":
    for strike in STRIKES:
        check(*strike)
    plain = run(GENERATE, check=True).stdout
    other = run(GENERATE, env=environment(VFLOW_FAULT="convert.memory:1=ENOMEM"), check=True).stdout
    ok(plain == other and plain, "another role's fault doesn't strike")
    p = run(CONVERTING, env=environment(VFLOW_FAULT="convert.memory:x=ENOMEM"))
    ok(p.returncode == 2 and b"VFLOW_FAULT" in p.stderr, "a fault that means nothing: status 2")
    done()
