"""What a user hands to a command by other ways than one argument: prompts from files and pipes,
endpoints by name and with odd ports, and numbers that must mean the same on both sides."""
import os
import re
import socket
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from serving import CLIENT, COORDINATOR, Server, done, model, note, ok, path, run

PROMPT = "Once upon a time"
LONG = "One day a dog went to the park. " * 8000  # more than the kernel takes as one argument


def here(*options, **more):
    return run([COORDINATOR, "generate", "--model", model(), "--max-tokens", "12", *options], **more)


def there(server, *options, **more):
    return run([CLIENT, "generate", "--connect", server.endpoint, "--max-tokens", "12", *options],
               **more)


def both(server, *options, **more):
    return [here(*options, **more), there(server, *options, **more)]


def write(name, data):
    with open(path(name), "wb") as f:
        f.write(data)
    return path(name)


def test_prompt_files(server):
    want = here("-p", PROMPT, check=True).stdout
    file = write("prompt.txt", PROMPT.encode())
    for got in both(server, "--prompt-file", file):
        ok(got.returncode == 0 and got.stdout == want, "--prompt-file FILE is -p TEXT")
    for got in both(server, "--prompt-file", "-", input=PROMPT.encode()):
        ok(got.returncode == 0 and got.stdout == want, "--prompt-file - reads standard input")
    fifo = path("prompt.fifo")
    os.mkfifo(fifo)
    for got in both(server, "--prompt-file", fifo):
        ok(got.returncode == 3 and b"FIFO" in got.stderr, "a FIFO is refused, not waited for")


def test_bad_prompts(server):
    for name, data, word in (("latin1.txt", b"caf\xe9", b"0xe9 at offset 3"),
                             ("cut.txt", b"ok \xe2\x82", b"0xe2 at offset 3")):
        file = write(name, data)
        for got in both(server, "--prompt-file", file):
            ok(got.returncode == 3 and word in got.stderr and file.encode() in got.stderr,
               "%s: status 3, the byte is named" % name) or note("%r" % got.stderr)
    for got in both(server, "--prompt-file", path("missing.txt")):
        ok(got.returncode == 3 and b"missing.txt" in got.stderr, "a file that isn't there")
    for got in both(server, "--prompt-file", path(".")):
        ok(got.returncode == 3 and b"directory" in got.stderr, "a directory is no prompt")
    for got in both(server, "--prompt-file", "x", "-p", "y"):
        ok(got.returncode == 2 and b"one of" in got.stderr, "two prompts: wrong usage")
    file = write("long.txt", LONG.encode())
    for got in both(server, "--prompt-file", file):
        ok(got.returncode in (1, 2, 3) and b"tokens" in got.stderr and len(LONG) > 131072,
           "a prompt beyond the context is refused with its count") or note("%r" % got.stderr)


def test_top_p_zero(server):
    hot = ["-p", PROMPT, "--temperature", "1.5", "--seed", "5", "--top-p"]
    texts = [r.stdout for r in both(server, *hot, "0", check=True)]
    greedy = here("-p", PROMPT, "--temperature", "0", check=True).stdout
    ok(texts[0] == texts[1] == greedy, "--top-p 0 leaves the likeliest token, on both sides")
    texts = [r.stdout for r in both(server, *hot, "1", check=True)]
    ok(texts[0] == texts[1] != greedy, "--top-p 1 is off, on both sides")


def test_seed(server):
    hot = ["-p", PROMPT, "--temperature", "1.5", "--top-p", "1", "--seed"]
    drawn = []
    for ask in (here, lambda *options, **more: there(server, *options, **more)):
        got = ask(*hot, "random", check=True)
        said = re.fullmatch(rb"the seed drawn is (\d+): --seed (\d+) gives this text again\n",
                            got.stderr)
        seed = said.group(1).decode() if said and said.group(1) == said.group(2) else "0"
        drawn.append(seed)
        ok(said and ask(*hot, seed, check=True).stdout == got.stdout,
           "--seed random: %s tells the story again" % seed) or note("%r" % got.stderr)
    ok("0" not in drawn and drawn[0] != drawn[1], "two draws, two seeds")
    for bad in ("-1", "9007199254740993", "Random", ""):
        for got in both(server, *hot, bad):
            ok(got.returncode == 2 and b"--seed: '%s' found" % bad.encode() in got.stderr and
               b"random" in got.stderr, "--seed '%s' is refused" % bad) or note("%r" % got.stderr)


def serve(endpoint):
    return run([COORDINATOR, "serve", "--model", model(), "--insecure", "--bind", endpoint])


def test_ports():
    for port in ("0", "-5", "65536", "99999", "4294967297", "80x", "", "+80", " 80"):
        endpoint = "tcp://127.0.0.1:" + port
        for got in (serve(endpoint),
                    run([CLIENT, "status", "--insecure", "--connect", endpoint])):
            ok(got.returncode == 2 and b"1 to 65535" in got.stderr, "port '%s' is refused" % port)
    for endpoint in ("tcp://127.0.0.1", "tcp://:80", "tcp://::1:80", "tcp://[nonsense]:80",
                     "tcp://no-such-host.invalid:8080", "tcp://1.2.3.4.5:80"):
        for got in (serve(endpoint),
                    run([CLIENT, "status", "--insecure", "--connect", endpoint])):
            ok(got.returncode in (1, 2) and endpoint.encode() in got.stderr,
               "%s is refused by name" % endpoint) or note("%r" % got.stderr)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_names():
    port = free_port()
    with Server("--bind", "tcp://localhost:%d" % port, "--insecure") as server:
        for host in ("localhost", "127.0.0.1"):
            got = run([CLIENT, "generate", "--insecure", "--connect", "tcp://%s:%d" % (host, port),
                       "-p", PROMPT, "-n", "3"])
            ok(got.returncode == 0, "bound to localhost, reached as %s" % host) or \
                note("%r" % got.stderr)
        server.stop()


with Server() as main_server:
    test_prompt_files(main_server)
    test_bad_prompts(main_server)
    test_top_p_zero(main_server)
    test_seed(main_server)
    main_server.stop()
test_ports()
test_names()
done()
