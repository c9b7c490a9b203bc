"""Starts a real `vflow-coordinator serve` and talks to it: through vflow-client, and frame by frame
through a DEALER of its own. Every wait has a deadline; every server is checked to leave nothing."""
import os
import signal
import subprocess
import sys
import tempfile
import time

import zmq

import processes
import tap
from processes import CONVERT, COORDINATOR, HOME, alive, environment, run, start  # noqa: F401
from tap import done, note, ok, skip_all  # noqa: F401

SOURCE = tap.source_dir()
CLIENT = tap.program("vflow-client")
CHECKPOINT = os.path.join(SOURCE, "models", "tiny_arch2_4")
WAIT_S = 60  # generous: sanitizer builds on a busy machine


def load_protocol():
    out = os.path.join(HOME, "pb")
    os.makedirs(out, exist_ok=True)
    proto = os.path.join(SOURCE, "proto")
    subprocess.run(["protoc", "--proto_path=" + proto, "--python_out=" + out,
                    os.path.join(proto, "vflow.proto")], check=True)
    sys.path.insert(0, out)
    import vflow_pb2
    return vflow_pb2


vflow = load_protocol()
PROTOCOL_DIR = os.path.join(HOME, "pb")


def path(name):
    return os.path.join(HOME, name)


def wait_until(condition, seconds=WAIT_S):
    return processes.wait_until(condition, seconds)


def finish(process, seconds=WAIT_S):
    return processes.finish(process, seconds)


def model():
    """The bundled model, converted once."""
    out = path("tiny.vflow")
    if not os.path.exists(out):
        run([CONVERT, CHECKPOINT, "-o", out], check=True)
    return out


class Server:
    """A running server. Use as a context manager: it is stopped and checked at the end."""

    def __init__(self, *options):
        self.log = tempfile.NamedTemporaryFile(dir=HOME, suffix=".log")
        self.process = subprocess.Popen(
            [COORDINATOR, "serve", "--model", model(), *options], stdout=subprocess.PIPE,
            stderr=self.log, env=environment(), preexec_fn=processes.child_signals)
        self.endpoints = []
        self.status_code = None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.output = b""
        if not wait_until(self.is_up):
            self.kill()
            raise RuntimeError("the server doesn't listen:\n" + self.errors())
        self.endpoints = [line.split()[2] for line in self.output.decode().splitlines()]
        self.workers = self.worker_pids()

    def is_up(self):
        self.output += self.process.stdout.read() or b""
        if self.process.poll() is not None:
            return True
        return self.output.startswith(b"listening on ") and self.output.endswith(b"\n")

    def worker_pids(self):
        with open("/proc/%d/task/%d/children" % (self.process.pid, self.process.pid)) as f:
            return [int(p) for p in f.read().split()]

    @property
    def endpoint(self):
        return self.endpoints[0]

    def errors(self):
        with open(self.log.name) as f:
            return f.read()

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self, signo=signal.SIGTERM):
        """The exit status; None when it didn't leave."""
        if self.process.poll() is None:
            self.process.send_signal(signo)
        try:
            self.status_code = self.process.wait(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        return self.status_code

    def leftovers(self):
        pid = "-%d-" % self.process.pid
        left = ["worker %d" % p for p in self.workers if alive(p)]
        left += [n for n in os.listdir("/dev/shm") if n.startswith("vflow-") and pid in n]
        left += [n for n in os.listdir(HOME) if n.startswith("vflow-") and pid in n]
        return left + [e for e in self.endpoints if e.startswith("ipc://") and
                       os.path.exists(e[6:])]

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.status_code is None:
            self.stop()
        if kind:
            note("the server's last lines:")
            for line in self.errors().splitlines()[-10:]:
                note("  " + line)
        wait_until(lambda: not self.leftovers(), 10)
        left = self.leftovers()
        if not ok(not left, "the server leaves nothing behind"):
            note("left: " + ", ".join(left))

    # ---- through vflow-client ----

    def client(self, command, *options, check=False, **kw):
        return run([CLIENT, command, "--connect", self.endpoint, *options], check=check, **kw)

    def start_client(self, command, *options):
        return start([CLIENT, command, "--connect", self.endpoint, *options])

    def status(self):
        with Peer(self.endpoint) as p:
            p.send().status.SetInParent()
            return p.receive_kind("status_reply").status_reply


class Peer:
    """A client, frame by frame. `send()` gives an envelope that leaves at the next receive."""

    def __init__(self, endpoint, **options):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        for name, value in options.items():
            setattr(self.socket, name, value)
        self.socket.connect(endpoint)
        self.next_id = 1
        self.pending = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.context.term()

    def send(self, **fields):
        if "request_id" not in fields:
            fields["request_id"] = self.next_id
            self.next_id += 1
        envelope = vflow.Envelope(**{"version": 1, **fields})
        self.pending.append(envelope)
        return envelope

    def flush(self):
        for envelope in self.pending:
            self.socket.send(envelope.SerializeToString())
        self.pending = []

    def raw(self, *frames):
        self.socket.send_multipart(frames)

    def receive(self, seconds=WAIT_S):
        """The next answer that isn't a heartbeat; None when none comes."""
        self.flush()
        deadline = time.monotonic() + seconds
        while self.socket.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            answer = vflow.Envelope.FromString(self.socket.recv())
            if answer.WhichOneof("body") != "heartbeat":
                return answer
        return None

    def receive_kind(self, kind, seconds=WAIT_S):
        """The next answer of that kind; others are dropped."""
        deadline = time.monotonic() + seconds
        while True:
            answer = self.receive(deadline - time.monotonic())
            if answer is None:
                raise RuntimeError("no %s came" % kind)
            if answer.WhichOneof("body") == kind:
                return answer

    def answers(self, request_id):
        """Every answer to one request, to its last."""
        got = []
        while True:
            answer = self.receive()
            if answer is None:
                raise RuntimeError("request %d got no last answer" % request_id)
            if answer.request_id != request_id:
                continue
            got.append(answer)
            kind = answer.WhichOneof("body")
            if kind in ("generate_done", "error", "status_reply", "cancel_reply") or (
                    kind == "score_result" and answer.score_result.last):
                return got


def generate_request(envelope, tokens=None, text=None, max_tokens=0, ignore_eos=True, **sampling):
    g = envelope.generate
    if tokens is not None:
        g.tokens.ids.extend(tokens)
    if text is not None:
        g.text = text
    g.max_tokens = max_tokens
    g.ignore_eos = ignore_eos
    for name, value in sampling.items():
        setattr(g.sampling, name, value)
    return envelope


class Stopped:
    """Keeps a server's workers from working meanwhile, so that a request stays where it is."""

    def __init__(self, server):
        self.pids = server.workers

    def __enter__(self):
        for p in self.pids:
            os.kill(p, signal.SIGSTOP)

    def __exit__(self, *_):
        for p in self.pids:
            if alive(p):
                os.kill(p, signal.SIGCONT)
