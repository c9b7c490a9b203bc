"""The Python example of docs/PROTOCOL.md does what vflow-client does, in at most 60 lines."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from serving import CLIENT, PROTOCOL_DIR, SOURCE, Server, done, environment, note, ok, path, run

EXAMPLE = os.path.join(SOURCE, "client", "examples", "generate.py")
OPTIONS = ["--max-tokens", "50", "--temperature", "0.9", "--seed", "11"]
PROMPT = "One day a little girl"


def example(endpoint, *options):
    return run([sys.executable, EXAMPLE, endpoint, *options],
               env=environment(PYTHONPATH=PROTOCOL_DIR))


def main():
    with open(EXAMPLE) as f:
        lines = len(f.readlines())
    ok(0 < lines <= 60, "it has %d lines" % lines)
    for name in ("server", "me"):
        run([CLIENT, "keygen", "--out", path(name)], check=True)
    with Server("--bind", "ipc://" + path("e.sock"), "--bind", "tcp://127.0.0.1:*",
                "--curve-secret", path("server.key"), "--allow", path("me.pub")) as server:
        want = server.client("generate", "-p", PROMPT, "--top-p", "1", *OPTIONS, check=True).stdout
        got = example(server.endpoints[0], PROMPT, *OPTIONS)
        if not ok(got.returncode == 0 and got.stdout == want and len(want) > 50,
                  "over ipc: the same text"):
            note("%r\n%r\n%s" % (got.stdout, want, got.stderr))
        got = example(server.endpoints[1], PROMPT, *OPTIONS, "--server-key", path("server.pub"),
                      "--key", path("me.key"))
        ok(got.returncode == 0 and got.stdout == want, "over tcp with keys: the same text")
        got = example(server.endpoints[0], PROMPT, "--temperature", "-1")
        ok(got.returncode == 1 and b"temperature" in got.stderr, "an error is printed: exit 1")
    done()


main()
