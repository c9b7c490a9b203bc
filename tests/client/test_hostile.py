"""Whatever arrives: a reason for the sender where it can have one, no harm to anybody else."""
import json
import os
import random
import socket
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from serving import (COORDINATOR, Peer, Server, Stopped, done, generate_request, model, note, ok, run,
                     vflow, wait_until)

USAGE, CORRUPT, BUSY, LIMIT, PROTOCOL = 1, 2, 13, 10, 11
SEED = 20240607
TOKENS = [0, 422, 443, 259]


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, kind, payload):
    return varint(number << 3 | kind) + (varint(len(payload)) if kind == 2 else b"") + payload


def alive_and_right(server, want):
    with Peer(server.endpoint) as p:
        r = generate_request(p.send(), tokens=TOKENS, max_tokens=12)
        return [i for a in p.answers(r.request_id) for i in a.tokens.ids] == want


def refusal(server, what, code, words, build):
    """build(peer) sends something bad and returns its request id; the answer is an error with that
    code, words and id."""
    with Peer(server.endpoint) as p:
        request_id = build(p)
        a = p.receive()
        good = (a is not None and a.WhichOneof("body") == "error" and a.error.code == code and
                all(w in a.error.text for w in words) and a.version == 1 and
                a.request_id == request_id)
        if not ok(good, what):
            note(str(a))


def generate_with(**options):
    def build(p):
        stop = options.pop("stop", [])
        r = generate_request(p.send(request_id=41), **options)
        r.generate.stop.extend(stop)
        return 41
    return build


def test_frames(server):
    def raw(*frames):
        def build(p):
            p.raw(*frames)
            return 0
        return build

    good = vflow.Envelope(version=1, request_id=9)
    good.status.SetInParent()
    bytes_ok = good.SerializeToString()
    refusal(server, "bytes that are no envelope", PROTOCOL, ["envelope"], raw(b"\xff\xff\xff\xff"))
    refusal(server, "an empty message", PROTOCOL, ["version 0"], raw(b""))
    refusal(server, "several frames", PROTOCOL, ["frames"], raw(bytes_ok, b"more"))
    refusal(server, "a REQ's empty delimiter", PROTOCOL, ["frames"], raw(b"", bytes_ok))
    refusal(server, "a truncated envelope", PROTOCOL, ["envelope"], raw(bytes_ok[:-1]))
    big = vflow.Envelope(version=1, request_id=9)
    big.generate.text = b"x" * (4 << 20)
    refusal(server, "a message over the limit", LIMIT, ["4194304"], raw(big.SerializeToString()))
    # A small message that would unfold into very much.
    bomb = field(1, 0, varint(1)) + field(3, 0, varint(82)) + field(30, 2, field(5, 2, b"") * 2000000)
    refusal(server, "two million empty stop texts", LIMIT, ["stop"], lambda p: p.raw(bomb) or 82)

    for version in (0, 2, 4294967295):
        def build(p, v=version):
            p.send(request_id=77, version=v).status.SetInParent()
            return 77
        refusal(server, "version %d" % version, PROTOCOL, [str(version), "speaks 1"], build)

    def epoch(p):
        p.send(request_id=78, epoch=3).status.SetInParent()
        return 78
    refusal(server, "an epoch", PROTOCOL, ["epoch 3"], epoch)

    def no_body(p):
        p.send(request_id=79)
        return 79
    refusal(server, "no body", PROTOCOL, ["body"], no_body)
    unknown = field(1, 0, varint(1)) + field(3, 0, varint(80)) + field(99, 2, b"xyz")
    refusal(server, "a body of the future", PROTOCOL, ["body"],
            lambda p: p.raw(unknown) or 80)
    for kind in ("hello", "plan", "ready", "step", "step_result", "fetch", "heartbeat", "shutdown",
                 "error", "tokens", "generate_done", "score_result", "status_reply", "accepted",
                 "cancel_reply"):
        def internal(p, k=kind):
            getattr(p.send(request_id=81), k).SetInParent()
            return 81
        refusal(server, "a client that sends %s" % kind, PROTOCOL, ["client"], internal)
    with Peer(server.endpoint) as p:
        p.socket.send(b"x" * (6 << 20))
        ok(p.receive(1) is None, "far above the limit the connection is dropped")


def test_fields(server):
    nan, inf = float("nan"), float("inf")
    cases = [
        ("no prompt", USAGE, ["token"], dict()),
        ("an empty token list", USAGE, ["token"], dict(tokens=[])),
        ("a token outside the vocabulary", USAGE, ["2048", "token 1"], dict(tokens=[1, 2048])),
        ("the largest token id", USAGE, ["4294967295"], dict(tokens=[4294967295])),
        ("a prompt as long as the context", LIMIT, ["512"], dict(tokens=[1] * 512)),
        ("text that isn't UTF-8", CORRUPT, ["UTF-8"], dict(text=b"a\xc3")),
        ("a surrogate", CORRUPT, ["UTF-8"], dict(text=b"\xed\xa0\x80")),
        ("a text over the limit", LIMIT, ["1048576"], dict(text=b"x" * ((1 << 20) + 1))),
        ("a long text", LIMIT, ["512"], dict(text=b"word " * 2000)),
        ("negative temperature", USAGE, ["temperature"], dict(tokens=TOKENS, temperature=-1)),
        ("NaN temperature", USAGE, ["temperature"], dict(tokens=TOKENS, temperature=nan)),
        ("infinite temperature", USAGE, ["temperature"], dict(tokens=TOKENS, temperature=inf)),
        ("NaN top_p", USAGE, ["top-p"], dict(tokens=TOKENS, temperature=1, top_p=nan)),
        ("top_p of 1.5", USAGE, ["top-p"], dict(tokens=TOKENS, temperature=1, top_p=1.5)),
        ("negative top_p", USAGE, ["top-p"], dict(tokens=TOKENS, temperature=1, top_p=-0.1)),
        ("NaN min_p", USAGE, ["min-p"], dict(tokens=TOKENS, temperature=1, min_p=nan)),
        ("min_p of 2", USAGE, ["min-p"], dict(tokens=TOKENS, temperature=1, min_p=2)),
        ("nine stop texts", LIMIT, ["stop", "9"], dict(tokens=TOKENS, stop=[b"x"] * 9)),
        ("an empty stop text", USAGE, ["stop[1]"], dict(tokens=TOKENS, stop=[b"x", b""])),
        ("a long stop text", USAGE, ["stop[0]", "1025"], dict(tokens=TOKENS, stop=[b"x" * 1025])),
        ("a stop text that isn't UTF-8", CORRUPT, ["stop[0]"], dict(tokens=TOKENS, stop=[b"\xff"])),
        ("a stop text with a NUL", CORRUPT, ["stop[0]"], dict(tokens=TOKENS, stop=[b"a\0b"])),
    ]
    for what, code, words, options in cases:
        refusal(server, what, code, words, generate_with(**options))

    def zero(p):
        generate_request(p.send(request_id=0), tokens=TOKENS)
        return 0
    refusal(server, "request id 0", PROTOCOL, ["request_id"], zero)

    def score(p):
        p.send(request_id=5).score.rows = True
        return 5
    refusal(server, "a score of nothing", USAGE, ["token"], score)
    with Peer(server.endpoint) as p:
        r = generate_request(p.send(), text=b"a\0b", max_tokens=1)
        want = p.send()
        want.score.text = b"a\0b"
        n = p.receive_kind("accepted").accepted.prompt_tokens
        short = p.send()
        short.score.text = b"a"
        answers = p.answers(short.request_id)
        ok(n > answers[0].accepted.prompt_tokens, "a NUL in a text doesn't end it")


def test_ids_and_counts(server):
    with Peer(server.endpoint) as p, Peer(server.endpoint) as q:
        with Stopped(server):
            generate_request(p.send(request_id=5), tokens=TOKENS, max_tokens=3)
            p.receive_kind("accepted")
            generate_request(p.send(request_id=5), tokens=TOKENS, max_tokens=3)
            a = p.receive()
            ok(a.request_id == 5 and a.error.code == PROTOCOL and "still runs" in a.error.text,
               "a request id that runs is refused")
            generate_request(q.send(request_id=5), tokens=TOKENS, max_tokens=3)
            ok(q.receive().HasField("accepted"), "another client may use it")
            p.send(request_id=5).status.SetInParent()
            ok(p.receive().HasField("status_reply"), "questions don't count")
        ok(p.answers(5)[-1].generate_done.reason == "length", "the first request isn't touched")
        generate_request(p.send(request_id=5), tokens=TOKENS, max_tokens=3)
        ok(p.answers(5)[-1].generate_done.reason == "length", "an id that ended may come again")
        with Stopped(server):
            for i in range(64):
                generate_request(p.send(request_id=100 + i), tokens=TOKENS, max_tokens=2)
                p.receive_kind("accepted")
            generate_request(p.send(request_id=200), tokens=TOKENS, max_tokens=2)
            a = p.receive()
            ok(a.request_id == 200 and a.error.code == BUSY and "64" in a.error.text,
               "a client's 65th request is refused")
            s = server.status()
            ok(s.sequences_active == 8 and s.requests_queued == 56, "the others wait in a queue")
        ended = set()
        while len(ended) < 64:
            a = p.receive()
            if a.WhichOneof("body") == "generate_done":
                ended.add(a.request_id)
        ok(ended == set(range(100, 164)), "and are all served")


def mutate(rng, data):
    data = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        kind = rng.randrange(4)
        at = rng.randrange(len(data) + 1)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at:at] = rng.randbytes(rng.randint(1, 6))
        elif kind == 2:
            del data[at:at + rng.randint(1, 6)]
        else:
            data[at:at] = field(rng.randint(1, 60), rng.choice([0, 1, 2, 5]), rng.randbytes(8))
    return bytes(data)


def examples():
    for fill in (lambda e: generate_request(e, tokens=TOKENS, max_tokens=4, temperature=0.5, seed=9),
                 lambda e: generate_request(e, text=b"Once upon", max_tokens=4),
                 lambda e: e.score.tokens.ids.extend(TOKENS),
                 lambda e: setattr(e.cancel, "target_request_id", 7),
                 lambda e: e.status.SetInParent(),
                 lambda e: e.step.columns.add(token=5, position=9)):
        e = vflow.Envelope(version=1, request_id=7)
        fill(e)
        yield e.SerializeToString()


def test_fuzz(server, want, count):
    """Random and mutated frames; in between, and at the end, the server still gives right answers."""
    rng = random.Random(SEED)
    bases = list(examples())
    right = True
    for part in range(5):
        with Peer(server.endpoint) as p:
            for _ in range(count // 5):
                frames = [rng.randbytes(rng.choice([0, 1, 2, 16, 300]))
                          if rng.random() < 0.3 else mutate(rng, rng.choice(bases))]
                if rng.random() < 0.1:
                    frames += [rng.randbytes(rng.randint(0, 9)) for _ in range(rng.randint(1, 5))]
                p.raw(*frames)
                while p.socket.poll(0):
                    p.socket.recv()
            # A peer's messages are handled in order: this answer says that all before it are.
            p.send(request_id=2**64 - 1).status.SetInParent()
            right &= wait_until(lambda: any(a.WhichOneof("body") == "status_reply"
                                            for a in iter(lambda: p.receive(0.5), None)))
        right &= alive_and_right(server, want)
    ok(right, "%d random messages (seed %d) do no harm" % (count, SEED))


def test_garbage_on_the_wire(server, want):
    """Not even ZeroMQ."""
    rng = random.Random(SEED)
    for size in (1, 10, 64, 5000):
        s = socket.socket(socket.AF_UNIX)
        s.connect(server.endpoint[6:])
        try:
            s.sendall(rng.randbytes(size))
        except BrokenPipeError:
            pass
        s.close()
    # A greeting that ends in the middle.
    s = socket.socket(socket.AF_UNIX)
    s.connect(server.endpoint[6:])
    s.sendall(b"\xff" + struct.pack(">Q", 1) + b"\x7f\x03")
    s.close()
    ok(alive_and_right(server, want), "bytes that aren't even ZeroMQ do no harm")


def main():
    want = run([COORDINATOR, "generate", "--model", model(), "--tokens",
                ",".join(map(str, TOKENS)), "--max-tokens", "12", "--temperature", "0",
                "--ignore-eos", "--json"], check=True)
    want = json.loads(want.stdout)["tokens"]
    with Server() as server:
        test_frames(server)
        test_fields(server)
        test_ids_and_counts(server)
        test_garbage_on_the_wire(server, want)
        test_fuzz(server, want, 3000)
        ok(wait_until(lambda: server.status().sequences_active == 0), "and has nothing left to do")
        ok(server.stop() == 0, "and stops as asked")
    done()


main()
