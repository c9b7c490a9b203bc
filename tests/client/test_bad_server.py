"""vflow-client believes no server: whatever one answers, it ends in a sentence and an exit status."""
import os
import struct
import sys

import zmq

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from serving import CLIENT, done, finish, note, ok, path, start, vflow

ENDPOINT = "ipc://" + path("bad.sock")


class BadServer:
    def __init__(self):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.bind(ENDPOINT)

    def request(self, kind):
        """The next request of that kind: its sender and envelope. A client that gave up has sent a
        cancel, which is nobody's business here."""
        while self.socket.poll(60000):
            peer, body = self.socket.recv_multipart()
            envelope = vflow.Envelope.FromString(body)
            if envelope.WhichOneof("body") == kind:
                return peer, envelope
        raise RuntimeError("vflow-client sent no %s" % kind)

    def close(self):
        self.socket.close()
        self.context.term()


def answer(request_id, **fields):
    return vflow.Envelope(version=1, request_id=request_id, **fields)


def session(server, what, command, options, answers, code, *words):
    """Runs a client against answers(request id), a list of envelopes or bytes."""
    c = start([CLIENT, command, "--connect", ENDPOINT, *options])
    peer, request = server.request(command)
    for a in answers(request.request_id):
        server.socket.send_multipart([peer, a if isinstance(a, bytes) else a.SerializeToString()])
    out, err, status = finish(c)
    if not ok(status == code and all(w in err for w in words), what):
        note("%s %r %r" % (status, out, err))
    return out


def rows(first, count, vocab_size, data, last=False):
    return vflow.ScoreResult(first_position=first, row_count=count, vocab_size=vocab_size,
                             rows=data, last=last, token_count=2)


def main():
    server = BadServer()
    generate = ["--tokens", "1,2", "--timeout", "0.5"]
    accepted = vflow.Accepted(prompt_tokens=2, has_text=True)
    end = vflow.GenerateDone(reason="length", generated_tokens=1)
    tokens = vflow.Tokens(ids=[5], text=b"five")

    out = session(server, "unknown answers and answers to others are skipped", "generate", generate,
                  lambda i: [answer(i, accepted=accepted), answer(i, ready=vflow.Ready()),
                             answer(i ^ 1, tokens=vflow.Tokens(ids=[6], text=b"six")),
                             answer(0, heartbeat=vflow.Heartbeat()), answer(i, tokens=tokens),
                             answer(i, generate_done=end)], 0)
    ok(out == "five\n", "and what remains is the text")
    session(server, "bytes that are no message", "generate", generate, lambda i: [b"\xff\xff"], 1,
            "envelope")
    session(server, "another version", "generate", generate,
            lambda i: [vflow.Envelope(version=2, request_id=i, accepted=accepted)], 1, "version 2")
    session(server, "silence after the first answer", "generate", generate,
            lambda i: [answer(i, accepted=accepted)], 1, "no sign of life", "0.5 s")
    session(server, "an error", "generate", generate,
            lambda i: [answer(i, error=vflow.Error(code=13, text="too much"))], 1, "too much")
    session(server, "an error about no request", "generate", generate,
            lambda i: [answer(0, error=vflow.Error(code=10, text="too large"))], 1, "too large")
    session(server, "an error code from the future", "generate", generate,
            lambda i: [answer(i, error=vflow.Error(code=99, text="strange"))], 1, "99", "strange")
    session(server, "text that isn't UTF-8, as JSON", "generate", generate + ["--json"],
            lambda i: [answer(i, accepted=accepted),
                       answer(i, tokens=vflow.Tokens(ids=[5], text=b"\xff")),
                       answer(i, generate_done=end)], 1, "UTF-8")
    session(server, "a model without a tokenizer", "generate", generate,
            lambda i: [answer(i, accepted=vflow.Accepted(prompt_tokens=2)),
                       answer(i, tokens=vflow.Tokens(ids=[5, 6])),
                       answer(i, tokens=vflow.Tokens(ids=[7])), answer(i, generate_done=end)], 0)

    npy = path("bad.npy")
    score = ["--tokens", "1,2", "--timeout", "0.5", "--logits", npy]
    row = struct.pack("<2f", -1, -2)
    for what, parts, word in [
            ("rows of the wrong size", [rows(0, 1, 3, row)], "12"),
            ("rows whose size overflows", [rows(0, 2**32 - 1, 2**32 - 1, row)], "8 bytes"),
            ("a gap between rows", [rows(1, 1, 2, row)], "position 1"),
            ("rows of changing width", [rows(0, 1, 2, row), rows(1, 2, 1, row)], "expected"),
            ("more rows than tokens", [rows(0, 1, 2, row), rows(1, 2, 2, row + row)], "row 3 of 2"),
            ("rows that are missing", [rows(0, 1, 2, row), rows(0, 0, 2, b"", True)], "1 of 2 positions"),
            ("no rows at all", [rows(0, 0, 2, b"", True)], "no rows")]:
        session(server, what, "score", score,
                lambda i, p=parts: [answer(i, accepted=accepted)] +
                [answer(i, score_result=x) for x in p], 1, word)
    ok(not [f for f in os.listdir(os.path.dirname(npy)) if f.startswith("bad.npy")],
       "no unfinished file is left")
    session(server, "a status that is something else", "status", ["--timeout", "0.5"],
            lambda i: [answer(i, accepted=accepted)], 1, "isn't a status")
    session(server, "a cancel reply that is something else", "cancel", ["--timeout", "0.5", "7"],
            lambda i: [answer(i, accepted=accepted)], 1, "isn't a cancel reply")
    server.close()
    done()


main()
