"""What clients get is what the coordinator's own commands give, alone and in company."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from serving import (CLIENT, COORDINATOR, Peer, Server, done, finish, generate_request, model, note,
                     ok, path, run)

PROMPT = "Once upon a time"
VARIANTS = [
    ["--temperature", "0"],
    ["--seed", "1"],
    ["--seed", "2", "--temperature", "1.5", "--top-k", "40", "--top-p", "1"],
    ["--seed", "9007199254740992", "--top-p", "0.7", "--min-p", "0.05"],
    ["--seed", "4", "--stop", "girl", "--stop", "boy"],
    ["--seed", "5", "--ignore-eos", "--max-tokens", "0"],
]


def alone(*options):
    return run([COORDINATOR, "generate", "--model", model(), *options], check=True).stdout


def test_generate(server):
    for variant in VARIANTS:
        options = ["-p", PROMPT, "--max-tokens", "60", *variant]
        got = server.client("generate", *options)
        want = alone(*options)
        if not ok(got.returncode == 0 and got.stdout == want,
                  "generate %s: the same text" % " ".join(variant)):
            note("got %r\nwant %r\n%s" % (got.stdout, want, got.stderr))
    options = ["--tokens", "0,422,443", "--max-tokens", "20", "--seed", "3", "--json"]
    got = json.loads(server.client("generate", *options, check=True).stdout)
    want = json.loads(alone(*options))
    ok(got["tokens"] == want["tokens"] and got["text"] == want["text"] and
       got["reason"] == want["reason"] == "length", "generate --json: the same tokens and text")
    ok(got["stats"]["prompt_tokens"] == 3 and got["stats"]["generated_tokens"] == 20 and
       int(got["request_id"]) > 0, "generate --json counts tokens and names the request")


def test_score(server):
    text = path("text.txt")
    with open(text, "w") as f:
        f.write("Lily went to the park. She saw a big dog and was happy.")
    got_npy, want_npy = path("got.npy"), path("want.npy")
    got = server.client("score", "--file", text, "--logits", got_npy, check=True)
    want = run([COORDINATOR, "score", "--model", model(), "--file", text, "--logits", want_npy],
               check=True)
    ok(got.stdout == want.stdout, "score prints the same lines")
    with open(got_npy, "rb") as a, open(want_npy, "rb") as b:
        ok(a.read() == b.read(), "score --logits writes the same bytes")
    ids = ",".join(str((i * 37) % 2048) for i in range(300))
    got = json.loads(server.client("score", "--tokens", ids, "--json", check=True).stdout)
    want = json.loads(run([COORDINATOR, "score", "--model", model(), "--tokens", ids, "--json"],
                          check=True).stdout)
    ok(all(got[k] == want[k] for k in ("tokens", "mean_nll", "perplexity", "token_logp")) and
       len(got["token_logp"]) == 299, "score --json gives the same numbers")
    for data, offset in ((b"caf\xe9", 3), (b"\xff", 0), (b"ok \xe2\x82", 3)):
        with open(text, "wb") as f:
            f.write(data)
        p = server.client("score", "--file", text)
        words = ["text.txt", "0x%02x" % data[offset], "offset %d" % offset]
        if not ok(p.returncode == 3 and all(w in p.stderr.decode() for w in words),
                  "score --file names the byte that isn't UTF-8"):
            note(p.stderr.decode())
    os.unlink(text)
    os.mkfifo(text)
    p = server.client("score", "--file", text)
    ok(p.returncode == 3 and b"text.txt is a FIFO" in p.stderr, p.stderr.decode().strip())
    p = server.client("score", "--tokens", "1,2", "--logits", text)
    ok(p.returncode == 2 and b"text.txt is a FIFO" in p.stderr, p.stderr.decode().strip())
    one = json.loads(server.client("score", "--tokens", "5", "--json", check=True).stdout)
    ok(one["tokens"] == 1 and one["mean_nll"] is None and one["token_logp"] == [],
       "one token has a score without numbers")


def test_rows_in_parts(server):
    with Peer(server.endpoint) as p:
        request = p.send()
        request.score.tokens.ids.extend(range(200))
        request.score.rows = True
        answers = p.answers(request.request_id)
    kinds = [a.WhichOneof("body") for a in answers]
    parts = [a.score_result for a in answers if a.WhichOneof("body") == "score_result"]
    ok(kinds[0] == "accepted" and answers[0].accepted.prompt_tokens == 200 and
       answers[0].accepted.has_text, "a score is accepted first")
    position = 0
    right = True
    for part in parts[:-1]:
        right &= part.first_position == position and not part.last
        right &= len(part.rows) == part.row_count * part.vocab_size * 4 and part.vocab_size == 2048
        position += part.row_count
    ok(right and position == 200 and len(parts) > 2,
       "rows come in %d parts, in order and complete" % (len(parts) - 1))
    ok(parts[-1].last and not parts[-1].rows and len(parts[-1].token_logp) == 199,
       "the last part ends the score")


def test_streaming(server):
    with Peer(server.endpoint) as p:
        request = generate_request(p.send(), text=PROMPT.encode(), max_tokens=30)
        answers = p.answers(request.request_id)
    kinds = [a.WhichOneof("body") for a in answers]
    ids = [i for a in answers if a.WhichOneof("body") == "tokens" for i in a.tokens.ids]
    ok(kinds[0] == "accepted" and kinds[-1] == "generate_done" and kinds.count("tokens") >= 30 and
       len(ids) == 30, "tokens stream one by one between accepted and done")
    text = b"".join(a.tokens.text for a in answers if a.WhichOneof("body") == "tokens")
    want = alone("-p", PROMPT, "--max-tokens", "30", "--temperature", "0", "--ignore-eos")
    ok(text + b"\n" == want, "their texts are the text")
    last = answers[-1].generate_done
    ok(last.reason == "length" and last.generated_tokens == 30, "done says why and how many")


def test_company(server):
    """Twelve clients at once on a server that computes eight sequences at a time."""
    jobs = [["-p", PROMPT + " there was a %s" % who, "--seed", str(i), "--max-tokens", "80"]
            for i, who in enumerate(["cat", "dog", "boy", "girl", "bird", "car", "tree", "king",
                                     "frog", "bear", "ball", "cloud"])]
    running = [server.start_client("generate", *job) for job in jobs]
    got = [finish(process) for process in running]
    right = [g[2] == 0 and g[0].encode() == alone(*job) for g, job in zip(got, jobs)]
    ok(all(right), "twelve clients at once: each gets what it would get alone")
    with Peer(server.endpoint) as p:
        requests = [generate_request(p.send(), text=job[1].encode(), max_tokens=80, ignore_eos=False,
                                     temperature=0.8, top_p=0.95, seed=i)
                    for i, job in enumerate(jobs)]
        texts = {r.request_id: b"" for r in requests}
        ended = 0
        while ended < len(requests):
            a = p.receive()
            texts[a.request_id] += a.tokens.text
            ended += a.WhichOneof("body") in ("generate_done", "error")
    ok([texts[r.request_id].decode() + "\n" for r in requests] == [g[0] for g in got],
       "twelve requests of one connection: the same again")


def test_status(server):
    s = server.status()
    ok(s.model == "tiny.vflow" and s.model_type == "pipeline_native" and s.context == 512 and
       s.parameters == 4071040 and s.sequences_max == 8 and s.software != "", "status: the model")
    ok(s.experts == "streamed" and s.expert_cache_bytes > 0 and s.expert_reads > 0 and
       s.expert_bytes_read > 0 and s.stats.experts_wanted > 0 and s.stats.compute_ns > 0,
       "status: experts and statistics")
    ok(sorted((w.role, w.index, w.state) for w in s.workers) ==
       [(1, 0, "ready"), (1, 1, "ready"), (2, 0, "ready"), (2, 1, "ready")] and
       sorted(w.pid for w in s.workers) == sorted(server.workers), "status: the workers")
    ok(s.sequences_active == 0 and s.requests_queued == 0 and s.requests_done > 30 and
       s.tokens_decoded > 1000 and s.tokens_prefilled > 500 and s.uptime_ms > 0, "status: the load")
    said = json.loads(server.client("status", "--json", check=True).stdout)
    ok(set(said) == {f.name for f in s.DESCRIPTOR.fields} and said["model"] == s.model and
       len(said["workers"]) == 4, "status --json has every field of the message")
    ok(set(said["stats"]) == {f.name for f in s.stats.DESCRIPTOR.fields if not f.message_type} and
       said["stats"]["barrier_ns"] >= s.stats.barrier_ns, "status --json has every counter")
    ok(b"tiny.vflow" in server.client("status", check=True).stdout, "status prints for people too")


def test_command_line():
    def status_of(*argv):
        p = run([CLIENT, *argv])
        return p.returncode, p.stderr.decode()

    code, err = status_of("status", "--connect", "ipc://" + path("nobody"), "--timeout", "0.3")
    ok(code == 1 and "no server at ipc://" in err and "0.3 s" in err, "nobody there: exit 1")
    code, err = status_of("generate", "-p", "x")
    ok(code == 2 and "--connect" in err, "no --connect: exit 2")
    code, err = status_of("generate", "--connect", "ipc:///x")
    ok(code == 2 and "-p TEXT" in err, "no prompt: exit 2")
    code, err = status_of("score", "--connect", "ipc://" + path("x"), "--file", path("none.txt"))
    ok(code == 3 and "none.txt" in err, "a text file that isn't there: exit 3")
    code, err = status_of("cancel", "--connect", "ipc:///x", "12x")
    ok(code == 2 and "12x" in err, "a bad request id: exit 2")
    code, err = status_of("status", "--connect", "http://x")
    ok(code == 2 and "http://x" in err, "an endpoint of another kind: exit 2")
    ok(run([CLIENT, "--help"]).returncode == 0 and
       all(run([CLIENT, c, "--help"]).returncode == 0
           for c in ("generate", "score", "status", "cancel", "keygen")), "--help everywhere")


def test_server_errors(server):
    p = server.client("generate", "--tokens", "99999")
    ok(p.returncode == 2 and b"99999" in p.stderr, "a token outside the vocabulary: exit 2")
    p = server.client("generate", "--tokens", ",".join(["5"] * 600))
    ok(p.returncode == 1 and b"512" in p.stderr, "a prompt longer than the context: exit 1")
    bad = path("bad.txt")
    with open(bad, "wb") as f:
        f.write(b"fine so far \xff")
    p = server.client("score", "--file", bad)
    ok(p.returncode == 3 and b"UTF-8" in p.stderr, "a text that isn't UTF-8: exit 3")
    with subprocess.Popen([CLIENT, "generate", "--connect", server.endpoint, "-p", PROMPT],
                          stdout=open("/dev/full", "w"), stderr=subprocess.PIPE) as c:
        err = c.communicate(timeout=60)[1]
        ok(c.returncode == 1 and b"stdout" in err, "a full disk: exit 1")


def main():
    with Server("--stage-workers", "2", "--experts", "stream", "--expert-cache", "600K",
                "--io-workers", "2", "--prefill-chunk", "64") as server:
        ok(server.endpoint.startswith("ipc://") and
           os.stat(server.endpoint[6:]).st_mode & 0o777 == 0o600 and
           os.stat(os.path.dirname(server.endpoint[6:])).st_mode & 0o777 == 0o700,
           "the default socket is private")
        test_generate(server)
        test_score(server)
        test_rows_in_parts(server)
        test_streaming(server)
        test_company(server)
        test_status(server)
        test_server_errors(server)
        ok(server.stop() == 0, "a signal is how a server ends: exit 0")
    test_command_line()
    done()


main()
