"""One expert can't be read: of the requests that share steps, exactly those that need it fail, each
with the error it would get alone, and the others get what they would get alone."""
import json
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from proc import (COORDINATOR, HOME, convert, done, environment, finish, note, ok, run, run_dirs,
                  shared, start)
from serving import Peer, generate_request

PROMPTS = [[t, 2 * t] for t in range(20, 320, 25)]
COUNT = 3  # tokens generated for each


def damaged_model():
    """The bundled model with one bit flipped in one expert."""
    with open(convert(shared("models", "tiny_arch2_4")), "rb") as f:
        data = bytearray(f.read())
    data[int(len(data) * 0.75)] ^= 1
    path = os.path.join(HOME, "damaged.vflow")
    with open(path, "wb") as f:
        f.write(data)
    return path


def alone(model, prompt):
    """Tokens, or the error's text."""
    p = run([COORDINATOR, "generate", "--model", model, "--tokens", ",".join(map(str, prompt)),
             "--max-tokens", str(COUNT), "--temperature", "0", "--ignore-eos", "--json"])
    if p.returncode == 0:
        return json.loads(p.stdout)["tokens"]
    return p.stderr.decode().strip().split(": ", 1)[1]


def in_company(model, options):
    endpoint = "ipc://%s/guilty" % HOME
    server = start([COORDINATOR, "serve", "--model", model, "--bind", endpoint, *options],
                   env=environment())
    try:
        if not server.stdout.readline():
            raise RuntimeError("the server doesn't listen")
        results = []
        with Peer(endpoint) as peer:
            requests = [generate_request(peer.send(), tokens=p, max_tokens=COUNT) for p in PROMPTS]
            answers = {r.request_id: [] for r in requests}
            ended = {}
            while len(ended) < len(requests):
                a = peer.receive(30)
                if a is None:
                    raise RuntimeError("%d of %d requests got no end" % (
                        len(requests) - len(ended), len(requests)))
                if a.WhichOneof("body") == "tokens":
                    answers[a.request_id] += list(a.tokens.ids)
                elif a.WhichOneof("body") in ("generate_done", "error"):
                    ended[a.request_id] = a.error.text
            for r in requests:
                results.append(ended[r.request_id] or answers[r.request_id])
        return results
    finally:
        server.send_signal(signal.SIGTERM)
        _, err, _ = finish(server)
        if sys.exc_info()[0]:
            note(err[-1000:])


def same(got, want):
    """Errors are compared by what they say about the file; who found them words them."""
    if isinstance(want, str) and isinstance(got, str):
        return all("damaged.vflow" in text and "checksum" in text for text in (got, want))
    return got == want


if __name__ == "__main__":
    path = damaged_model()
    wanted = [alone(path, p) for p in PROMPTS]
    failing = sum(isinstance(w, str) for w in wanted)
    ok(0 < failing < len(wanted), "alone, %d of %d requests need the damaged expert"
       % (failing, len(wanted)))
    for opts in (["--batch", "6"], ["--batch", "4", "--weights", "huge"],
                 ["--batch", "12", "--stage-workers", "2"],
                 ["--batch", "5", "--experts", "stream", "--expert-cache", "320K"]):
        found = in_company(path, opts)
        wrong = [i for i in range(len(PROMPTS)) if not same(found[i], wanted[i])]
        if not ok(not wrong, "%s: every request ends as it does alone" % " ".join(opts)):
            for i in wrong:
                note("prompt %s: found %s, alone %s" % (PROMPTS[i], found[i], wanted[i]))
    ok(not run_dirs(), "nothing is left behind")
    done()
