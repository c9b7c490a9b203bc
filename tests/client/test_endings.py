"""How requests, clients and servers end: cancelled, interrupted, killed, too slow, shut down. The
workers are stopped (SIGSTOP) where a request has to stay unfinished."""
import json
import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from serving import (CLIENT, COORDINATOR, Peer, Server, Stopped, alive, done, finish,
                     generate_request, model, note, ok, path, run, wait_until)


def idle(server):
    s = server.status()
    return s.sequences_active == 0 and s.requests_queued == 0


def test_cancel(server):
    with Peer(server.endpoint) as p:
        with Stopped(server):
            request = generate_request(p.send(), tokens=[0, 422], max_tokens=400)
            p.receive_kind("accepted")
            p.send().cancel.target_request_id = request.request_id
            reply = p.receive_kind("cancel_reply")
            last = p.receive()
        ok(reply.cancel_reply.found and last.request_id == request.request_id and
           last.generate_done.reason == "cancelled", "a cancelled generation ends at once")
        score = p.send()
        score.score.tokens.ids.extend(range(300))
        with Stopped(server):
            p.receive_kind("accepted")
            p.send().cancel.target_request_id = score.request_id
            last = p.answers(score.request_id)[-1]
        ok(last.error.code == 9, "a cancelled score ends in an error that says so")
        p.send().cancel.target_request_id = 123456
        ok(not p.receive_kind("cancel_reply").cancel_reply.found, "nothing to cancel: not found")
        again = generate_request(p.send(), tokens=[0, 422], max_tokens=5)
        ok(p.answers(again.request_id)[-1].generate_done.reason == "length",
           "the connection goes on")
    ok(wait_until(lambda: idle(server)), "the sequences are free again")


def request_id_of(process):
    line = process.stderr.readline().decode()
    return re.search(r"request (\d+)", line).group(1)


def test_cancel_command(server):
    with Stopped(server):
        c = server.start_client("generate", "--tokens", "0,422", "--max-tokens", "0", "-v")
        request_id = request_id_of(c)
        wait_until(lambda: server.status().sequences_active == 1)
        p = server.client("cancel", request_id)
        out, err, status = finish(c)
    ok(p.returncode == 0 and request_id in p.stdout.decode(), "vflow-client cancel ends a request")
    ok(status == 0 and "cancelled after 0 tokens" in err, "whose client hears of it")
    p = server.client("cancel", request_id)
    ok(p.returncode == 1 and request_id in p.stderr.decode(), "a second cancel finds nothing")


def test_interrupt(server):
    for name in ("SIGINT", "SIGTERM"):
        with Stopped(server):
            c = server.start_client("generate", "--tokens", "0,422", "--max-tokens", "0", "-v")
            request_id_of(c)
            wait_until(lambda: server.status().sequences_active == 1)
            c.send_signal(getattr(signal, name))
            out, err, status = finish(c)
        ok(status == 128 + getattr(signal, name), "%s: exit %s" % (name, status))
        ok(wait_until(lambda: idle(server), 10), "and the server stops working for it")


def test_client_dies(server):
    with Peer(server.endpoint) as other:
        with Stopped(server):
            c = server.start_client("generate", "--tokens", "0,422", "--max-tokens", "0", "-v")
            request_id_of(c)
            wait_until(lambda: server.status().sequences_active == 1)
            request = generate_request(other.send(), tokens=[0, 422, 443], max_tokens=100)
            other.receive_kind("accepted")
            wait_until(lambda: server.status().sequences_active == 2)
            c.kill()
            finish(c)
            # Noticed when a heartbeat (every 5 s) can't be delivered.
            left = wait_until(lambda: server.status().sequences_active == 1, 20)
        ok(left, "a killed client's request is cancelled though nothing was sent to it")
        answers = other.answers(request.request_id)
        got = [i for a in answers for i in a.tokens.ids]
        want = run([COORDINATOR, "generate", "--model", model(), "--tokens", "0,422,443",
                    "--max-tokens", "100", "--temperature", "0", "--ignore-eos", "--json"],
                   check=True)
        ok(got == json.loads(want.stdout)["tokens"],
           "another client's stream isn't touched")
    for i in range(5):
        c = server.start_client("generate", "--tokens", "0,422", "--max-tokens", "0", "-v")
        c.stdout.read(1)
        c.kill()
        finish(c)
    ok(wait_until(lambda: idle(server), 20), "clients killed while streaming are forgotten")


def test_slow_client(server):
    """Sixty scores of 4 MiB for somebody who reads nothing; the queue holds 1 MiB."""
    with Peer(server.endpoint, rcvhwm=1) as slow, Peer(server.endpoint) as other:
        ids = []
        for _ in range(60):
            request = slow.send()
            request.score.tokens.ids.extend(range(512))
            request.score.rows = True
            ids.append(request.request_id)
        slow.flush()
        request = generate_request(other.send(), tokens=[0, 422, 443], max_tokens=50)
        ok(other.answers(request.request_id)[-1].generate_done.generated_tokens == 50,
           "others are served meanwhile")
        ok(wait_until(lambda: idle(server)), "the slow client's requests end")
        ends = {}
        while len(ends) < len(ids):
            a = slow.receive()
            if a is None:
                break
            if a.WhichOneof("body") == "error":
                ends[a.request_id] = a.error
            elif a.score_result.last:
                ends[a.request_id] = None
        refused = [e for e in ends.values() if e]
        ok(sorted(ends) == sorted(ids) and refused and
           all(e.code == 10 and "slowly" in e.text for e in refused),
           "it is told so, for each request (%d of %d)" % (len(refused), len(ids)))
        request = slow.send()
        request.status.SetInParent()
        ok(slow.answers(request.request_id)[-1].HasField("status_reply"), "and may go on")


def test_shutdown(signo):
    with Server("--io-workers", "1", "--bind", "ipc://" + path("s.sock"), "--bind",
                "ipc://" + path("t.sock")) as server:
        ok(sorted(server.endpoints) == ["ipc://" + path("s.sock"), "ipc://" + path("t.sock")] and
           os.stat(path("s.sock")).st_mode & 0o777 == 0o600, "both endpoints are there, and private")
        with Peer(server.endpoints[1]) as p:
            with Stopped(server):
                request = generate_request(p.send(), tokens=[0, 422])
                p.receive_kind("accepted")
                c = server.start_client("generate", "--tokens", "0,422", "-v")
                request_id_of(c)
                wait_until(lambda: server.status().sequences_active == 2)
                server.process.send_signal(signo)
                last = p.receive()
            ok(last.request_id == request.request_id and last.error.code == 9 and
               "shutting down" in last.error.text, "%s: running requests are told" % signo.name)
        err, status = finish(c)[1:]
        ok(status == 1 and "shutting down" in err, "vflow-client prints it and exits 1")
        ok(server.stop() == 0, "the server exits 0")


def test_worker_dies():
    with Server() as server:
        with Peer(server.endpoint) as p:
            with Stopped(server):
                request = generate_request(p.send(), tokens=[0, 422])
                p.receive_kind("accepted")
                os.kill(server.workers[0], signal.SIGKILL)
                last = p.answers(request.request_id)[-1]
        ok(last.error.code == 8 and str(server.workers[0]) in last.error.text,
           "a worker dies: its requests get an error that names it")
        code = server.process.wait(timeout=60)
        server.status_code = code
        ok(code == 1 and str(server.workers[0]) in server.errors(), "the server says it and exits 1")


def test_server_dies():
    with Server("--bind", "ipc://" + path("d.sock")) as server:
        with Stopped(server):
            c = server.start_client("generate", "--tokens", "0,422", "-v")
            request_id_of(c)
            wait_until(lambda: server.status().sequences_active == 1)
            server.process.kill()
            server.process.wait()
            server.status_code = -9
        err, status = finish(c)[1:]
        ok(status == 1 and "closed the connection" in err, "the server dies: the client says so")
        again = Server("--bind", "ipc://" + path("d.sock"))
        with again:
            ok(again.client("status").returncode == 0, "a new server replaces a dead one's socket")
            second = run([COORDINATOR, "serve", "--model", model(), "--bind",
                          "ipc://" + path("d.sock")])
            ok(second.returncode == 1 and b"another server" in second.stderr,
               "but not a living one's")
            ok(again.client("status").returncode == 0, "which is still there")


def test_server_killed():
    """Its own sockets' files go too, without anybody's help."""
    with Server("--bind", "ipc://" + path("k.sock"), "--bind", "ipc://" + path("l.sock")) as server:
        workers = server.workers
        server.process.kill()
        server.process.wait()
        server.status_code = -9
        gone = wait_until(lambda: not server.leftovers(), 10)
        ok(workers and gone and not os.path.exists(path("k.sock")),
           "kill -9: the workers remove its sockets elsewhere")

    with Server("--bind", "ipc://" + path("k.sock")) as server:
        for pid in [*server.workers, server.process.pid]:
            os.kill(pid, signal.SIGSTOP)
        for pid in [*server.workers, server.process.pid]:
            os.kill(pid, signal.SIGKILL)
        server.process.wait()
        server.status_code = -9
        ok(wait_until(lambda: not any(alive(p) for p in server.workers)) and
           os.path.exists(path("k.sock")), "kill -9 of everybody leaves a socket")
        with Server("--bind", "ipc://" + path("k.sock")) as again:
            ok(again.client("status").returncode == 0,
               "a new server in its place keeps its own, though it sweeps")
            again.stop()
        ok(not os.path.exists(path("k.sock")), "and takes it along")


def test_no_server():
    began = time.monotonic()
    p = run([CLIENT, "status", "--connect", "ipc://" + path("none.sock")])
    took = time.monotonic() - began
    ok(p.returncode == 1 and b"no such socket file" in p.stderr and took < 10,
       "a socket file that isn't there is told at once: %s" % p.stderr.decode().strip())
    began = time.monotonic()
    p = run([CLIENT, "status", "--connect", "ipc://" + path("none.sock"), "--timeout", "1.5"])
    took = time.monotonic() - began
    ok(p.returncode == 1 and b"within 1.5 s" in p.stderr and took >= 1.5, "--timeout waits for it")


def test_paths():
    precious = path("precious")
    with open(precious, "w") as f:
        f.write("mine")
    p = run([COORDINATOR, "serve", "--model", model(), "--bind", "ipc://" + precious])
    ok(p.returncode == 2 and b"isn't a socket" in p.stderr and open(precious).read() == "mine",
       "a file in the way is refused and kept")
    for endpoint, word in [("ipc://relative", b"absolute"), ("ipc://@abstract", b"absolute"),
                           ("ipc:///" + "x" * 200, b"characters"), ("inproc://x", b"neither"),
                           ("tcp://127.0.0.1:*", b"--curve-secret"), ("tcp://nonsense", b"")]:
        more = ["--insecure"] if endpoint == "tcp://nonsense" else []
        p = run([COORDINATOR, "serve", "--model", model(), "--bind", endpoint, *more])
        if not ok(p.returncode == 2 and word in p.stderr, "--bind %.20s: exit 2" % endpoint):
            note("%s %s" % (p.returncode, p.stderr))
    p = run([COORDINATOR, "serve", "--model", path("none.vflow")])
    ok(p.returncode == 3, "a model that isn't there: exit 3")


def main():
    with Server("--client-queue", "1M", "--prefill-chunk", "64") as server:
        test_cancel(server)
        test_cancel_command(server)
        test_interrupt(server)
        test_client_dies(server)
        test_slow_client(server)
    test_shutdown(signal.SIGTERM)
    test_shutdown(signal.SIGINT)
    test_worker_dies()
    test_server_dies()
    test_server_killed()
    test_no_server()
    test_paths()
    done()


main()
