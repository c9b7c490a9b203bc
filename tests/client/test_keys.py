"""tcp: only holders of listed keys get in, and each refusal is a sentence on both sides."""
import os
import re
import sys

import zmq

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from serving import (CLIENT, COORDINATOR, Peer, Server, Stopped, done, generate_request, model, note,
                     ok, path, run, wait_until)

PROMPT = ["-p", "Once upon a time", "--max-tokens", "40", "--seed", "7"]


def keygen(name):
    return run([CLIENT, "keygen", "--out", path(name)])


def make_keys():
    p = keygen("server")
    ok(p.returncode == 0 and os.stat(path("server.key")).st_mode & 0o777 == 0o600 and
       os.stat(path("server.pub")).st_mode & 0o777 == 0o644, "keygen: the secret is private")
    before = open(path("server.key")).read(), open(path("server.pub")).read()
    again = keygen("server")
    os.rename(path("server.key"), path("moved.key"))
    half = keygen("server")
    ok(again.returncode == 2 and half.returncode == 2 and b"isn't overwritten" in half.stderr and
       not os.path.exists(path("server.key")), "keygen never overwrites, nor leaves half a pair")
    os.rename(path("moved.key"), path("server.key"))
    ok(before == (open(path("server.key")).read(), open(path("server.pub")).read()),
       "what was there is as it was")
    for name in ("alice", "bob", "mallory"):
        keygen(name)
    with open(path("allow"), "w") as f:
        f.write("# who may in\n\n" + open(path("alice.pub")).read() + open(path("bob.pub")).read())


def key_of(name, kind="public"):
    with open(path(name)) as f:
        return re.search("^%s (\\S+)" % kind, f.read(), re.M).group(1).encode()


def keys(own, server="server"):
    return ["--server-key", path(server + ".pub"), "--key", path(own + ".key")]


def peer(server, own):
    return Peer(server.endpoint, curve_serverkey=key_of("server.pub"),
                curve_publickey=key_of(own + ".pub"), curve_secretkey=key_of(own + ".key", "secret"))


def refused(process, code, *words):
    if not (process.returncode == code and all(w.encode() in process.stderr for w in words)):
        note("%s %s" % (process.returncode, process.stderr))
        return False
    return True


def test_admission(server):
    want = run([COORDINATOR, "generate", "--model", model(), *PROMPT], check=True).stdout
    for name in ("alice", "bob"):
        got = server.client("generate", *PROMPT, *keys(name))
        ok(got.stdout == want and got.returncode == 0, "%s is listed and gets the same text" % name)
    ok(refused(server.client("status", *keys("mallory")), 1, "--allow"), "mallory isn't listed")
    ok(refused(server.client("status", *keys("alice", "bob")), 1, "--server-key"),
       "a server that isn't the expected one is noticed")
    ok(refused(server.client("status", "--insecure"), 1, "--key"), "without keys nobody gets in")
    ok(refused(server.client("status"), 2, "--insecure"), "nor is it tried without saying so")
    with Peer(server.endpoint) as p:
        p.send().status.SetInParent()
        ok(p.receive(1.5) is None, "a peer without CURVE hears nothing")
    with peer(server, "mallory") as p:
        p.send().status.SetInParent()
        ok(p.receive(1.5) is None, "a peer with an unlisted key hears nothing")
    ok(server.client("status", *keys("alice")).returncode == 0, "and the server goes on")
    ok("insecure" not in server.errors(), "no warning where there is nothing to warn of")


def test_owners(server):
    """Requests belong to keys: another connection of the same key may cancel, another key not."""
    with peer(server, "alice") as a, peer(server, "alice") as a2, peer(server, "bob") as b:
        with Stopped(server):
            request = generate_request(a.send(request_id=77), tokens=[0, 422])
            a.receive_kind("accepted")
            b.send().cancel.target_request_id = 77
            ok(not b.receive_kind("cancel_reply").cancel_reply.found, "bob can't cancel alice's")
            same = generate_request(b.send(request_id=77), tokens=[0, 422])
            b.receive_kind("accepted")
            a2.send().cancel.target_request_id = 77
            ok(a2.receive_kind("cancel_reply").cancel_reply.found, "alice can, from elsewhere")
            ok(a.answers(request.request_id)[-1].generate_done.reason == "cancelled",
               "hers ends")
            ok(b.receive(0.3) is None, "bob's request of the same id doesn't")
            with Peer(server.endpoints[1]) as local:
                local.send().cancel.target_request_id = 77
                ok(local.receive_kind("cancel_reply").cancel_reply.found and
                   b.answers(same.request_id)[-1].generate_done.reason == "cancelled",
                   "the server's own user may cancel anything over ipc")


def test_borrowed_routing_id(server):
    """A client that takes the routing id of one that left doesn't become it."""
    with Stopped(server):
        a = Peer(server.endpoint, routing_id=b"the-same", curve_serverkey=key_of("server.pub"),
                 curve_publickey=key_of("alice.pub"), curve_secretkey=key_of("alice.key", "secret"))
        with a:
            generate_request(a.send(request_id=9), tokens=[0, 422])
            a.receive_kind("accepted")
        with Peer(server.endpoint, routing_id=b"the-same", curve_serverkey=key_of("server.pub"),
                  curve_publickey=key_of("bob.pub"),
                  curve_secretkey=key_of("bob.key", "secret")) as thief:
            thief.send().cancel.target_request_id = 9
            ok(not thief.receive_kind("cancel_reply").cancel_reply.found,
               "a borrowed routing id doesn't make an owner")
        ok(wait_until(lambda: server_is_idle(server)), "the request of who left is cancelled")


def server_is_idle(server):
    with Peer(server.endpoints[1]) as local:
        local.send().status.SetInParent()
        return local.receive_kind("status_reply").status_reply.sequences_active == 0


def test_server_options():
    def serve(*options):
        return run([COORDINATOR, "serve", "--model", model(), *options])

    secret, allow = ["--curve-secret", path("server.key")], ["--allow", path("allow")]
    tcp = ["--bind", "tcp://127.0.0.1:*"]
    ok(refused(serve(*tcp), 2, "--curve-secret", "--insecure"), "tcp without keys: exit 2")
    ok(refused(serve(*tcp, *secret), 2, "--allow"), "keys without a list: exit 2")
    ok(refused(serve(*tcp, *allow), 2, "--curve-secret"), "a list without keys: exit 2")
    ok(refused(serve(*tcp, "--curve-secret", path("server.pub"), *allow), 1, "0644"),
       "a secret key file that others can read is refused")
    ok(refused(serve(*tcp, *secret, "--allow", path("alice.key")), 3, "secret key"),
       "a secret key in the list is refused")
    ok(refused(serve(*tcp, *secret, "--allow", path("none")), 3, "none"), "no list there: exit 3")
    with open(path("bad"), "w") as f:
        f.write("public short\n")
    ok(refused(serve(*tcp, *secret, "--allow", path("bad")), 3, "line 1"), "a bad list: exit 3")


def test_insecure():
    with Server("--bind", "tcp://127.0.0.1:*", "--insecure") as server:
        ok(re.match(r"tcp://127\.0\.0\.1:\d+$", server.endpoint) and
           "anybody" in server.errors(), "--insecure listens, and warns")
        ok(server.client("status", "--insecure").returncode == 0, "everybody gets in")
        ok(refused(server.client("status", *keys("alice")), 1, "--server-key"),
           "a client that expects keys is not fooled")
        with Peer(server.endpoint) as p:
            with Stopped(server):
                request = generate_request(p.send(request_id=5), tokens=[0, 422])
                p.receive_kind("accepted")
                c = server.client("cancel", "5", "--insecure")
                ok(c.returncode == 0 and
                   p.answers(request.request_id)[-1].generate_done.reason == "cancelled",
                   "everybody is one owner there")
    with Server("--bind", "tcp://127.0.0.1:*", "--insecure", "--curve-secret",
                path("server.key")) as server:
        ok(server.client("status", *keys("mallory")).returncode == 0,
           "--insecure with keys but no list lets every key in")
        ok(refused(server.client("status", "--insecure"), 1, "--key"), "but nobody without one")


def main():
    make_keys()
    with Server("--bind", "tcp://127.0.0.1:*", "--bind", "ipc://" + path("k.sock"),
                "--curve-secret", path("server.key"), "--allow", path("allow")) as server:
        test_admission(server)
        test_owners(server)
        test_borrowed_routing_id(server)
    test_server_options()
    test_insecure()
    done()


main()
