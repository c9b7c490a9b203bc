"""What `cmake --install` and the .deb put on a machine: the same tree, programs that find one another in
it, a client library that another program can be built with, words for the shell, manual pages."""
import gzip
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from serving import CHECKPOINT, HOME, Server, done, note, ok, path, run
import tap

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.dirname(os.environ["VFLOW_BIN"])
PROGRAMS = ["vflow-convert", "vflow-inspect", "vflow-coordinator", "vflow-client", "vflow-bench",
            "vflow-stage-worker", "vflow-io-worker"]


def tree(root):
    return sorted(os.path.relpath(os.path.join(d, f), root)
                  for d, _, files in os.walk(root) for f in files)


def test_tree():
    root = path("root")
    run(["cmake", "--install", BUILD, "--prefix", "/usr"], env=dict(os.environ, DESTDIR=root),
        check=True, timeout=120)
    usr = os.path.join(root, "usr")
    files = tree(root)
    ok(all("usr/bin/" + p in files for p in PROGRAMS), "every program is installed")
    ok(all("usr/share/bash-completion/completions/" + p in files for p in PROGRAMS),
       "and its completion")
    for page in ("vflow-coordinator", "vflow-coordinator-generate", "vflow-convert",
                 "vflow-client-score"):
        name = "usr/share/man/man1/%s.1.gz" % page
        ok(name in files and gzip.open(os.path.join(root, name)).read().startswith(b".TH "),
           "the manual has " + page)
    return root, usr, files


def test_package(files):
    out = path("deb")
    p = run(["cpack", "--config", os.path.join(BUILD, "CPackConfig.cmake"), "-B", out],
            timeout=180)
    debs = [f for f in os.listdir(out) if f.endswith(".deb")] if os.path.isdir(out) else []
    if not ok(p.returncode == 0 and len(debs) == 1, "cpack makes one package"):
        note("%r" % (p.stdout + p.stderr)[-600:])
        return
    deb = os.path.join(out, debs[0])
    control = run(["dpkg-deb", "-I", deb], check=True).stdout.decode()
    ok(all(lib in control for lib in ("libzmq5", "libprotobuf-c1", "liburing2", "libhwloc15",
                                      "libpcre2-8-0", "libjansson4", "libxxhash0", "libutf8proc2")),
       "it depends on the libraries that the programs use")
    unpacked = path("unpacked")
    run(["dpkg-deb", "-x", deb, unpacked], check=True)
    ok(tree(unpacked) == files, "it holds the tree that cmake --install makes")


def test_programs(usr):
    bin_ = os.path.join(usr, "bin")
    model = path("installed.vflow")
    run([bin_ + "/vflow-convert", CHECKPOINT, "-o", model], check=True)
    text = run([bin_ + "/vflow-coordinator", "generate", "-m", model, "-p", "Once", "-n", "8"],
               check=True, env=dict(os.environ, PATH="/nowhere")).stdout
    ok(len(text) > 8, "installed programs convert and talk")


def test_library(usr):
    pc = [os.path.join(d, f) for d, _, files in os.walk(usr) for f in files
          if f == "vflow-client.pc"]
    env = dict(os.environ, PKG_CONFIG_PATH=os.path.dirname(pc[0]))
    flags = run(["pkg-config", "--cflags", "--libs", "vflow-client"], env=env,
                check=True).stdout.decode().split()
    program = path("status_client")
    cc = os.environ.get("CC", "cc")
    run([cc, "-Wall", "-Werror", os.path.join(HERE, "status_client.c"), "-o", program, *flags],
        check=True)
    libs = next(f[2:] for f in flags if f.startswith("-L"))
    env = dict(os.environ, LD_LIBRARY_PATH=libs)
    with Server() as server:
        p = run([program, server.endpoint], env=env)
        ok(p.returncode == 0 and p.stdout == b"pipeline_native\n",
           "a program built with the installed library alone asks a server") or \
            note("%r" % p.stderr)
        server.stop()
    p = run([program, "tcp://127.0.0.1:99999"], env=env)
    ok(p.returncode == 2 and p.stderr.count(b"\n") == 1, "and gets the library's sentences")
    names = run(["nm", "-D", "--defined-only", os.path.join(libs, "libvflow-client.so")],
                check=True).stdout.decode().split("\n")
    names = {line.split()[2].split("@")[0] for line in names if len(line.split()) == 3}
    allowed = re.compile(r"vf_client_\w+|vf_curve_\w+|vf_err_\w+|vf_exit_status|vflow__\w+|VFLOW_.*")
    ok("vf_client_open" in names and all(allowed.fullmatch(n) for n in names),
       "it shows what its header names and nothing else") or note(str(sorted(names))[:400])


def complete(usr, *words):
    script = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
              '_vflow "$1"; printf "%s\\n" "${COMPREPLY[@]}"')
    file = os.path.join(usr, "share/bash-completion/completions/vflow-convert")
    p = run(["bash", "-c", script, "bash", file, os.path.join(usr, "bin", words[0]), *words[1:]],
            check=True)
    return p.stdout.decode().split()


def test_completion(usr):
    for words, want in (
            (["vflow-coordinator", ""], {"generate", "score", "serve", "plan"}),
            (["vflow-coordinator", "ge"], {"generate"}),
            (["vflow-coordinator", "generate", "--kernel", "avx"], {"avx2", "avx512"}),
            (["vflow-coordinator", "generate", "--kernel", "=", ""], {"vnni", "scalar"}),
            (["vflow-coordinator", "score", "--str"], {"--stride"}),
            (["vflow-convert", "--q"], {"--quant"}),
            (["vflow-client", "status", "--con"], {"--connect"})):
        got = complete(usr, *words)
        ok(want <= set(got) and all(g.startswith(words[-1]) for g in got),
           "completes %s" % " ".join(words)) or note(str(got))
    ok(complete(usr, "vflow-coordinator", "generate", "--top-k", "") == [],
       "a number isn't guessed")
    ok(complete(usr, "vflow-coordinator", "generate", "--seed", "") == ["random"],
       "a word beside it is")


root, usr, files = test_tree()
test_package(files)
test_programs(usr)
test_library(usr)
test_completion(usr)
shutil.rmtree(root)
done()
