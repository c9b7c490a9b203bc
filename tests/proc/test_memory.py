"""--memory is kept: real processes in a memory control group of their own never take more than it
says, on budgets from the smallest on; what can't fit is refused with the numbers; a limited machine
is found at the start."""
import ctypes
import json
import mmap
import os
import resource
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import memory
from processes import COORDINATOR, HOME, environment, run
from tap import done, note, ok, program, skip_all

MIB = 1 << 20
BENCH = program("vflow-bench")
MODEL = os.path.join(HOME, "mid.vflow")
PROMPT = ",".join(str(i * 37 % 8000) for i in range(200))
TOKENS = 24
RUN = ["--tokens", PROMPT, "-n", str(TOKENS), "--ignore-eos", "--temperature", "0", "--json"]
SIZES = ["--ctx", "256", "--prefill-chunk", "64"]  # KV caches nearly full at the end
CONFIG = {
    "model_type": "olmoe", "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 768, "num_experts": 32, "num_experts_per_tok": 4,
    "vocab_size": 16000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
    "norm_topk_prob": False,
}
# A share of the experts that may be in the page cache of a run that streams them: neighbours of what
# is mapped, which the system read along before it was told not to.
STRAY_SHARE_MAX = 0.05


def make_model():
    config = os.path.join(HOME, "config.json")
    with open(config, "w") as f:
        json.dump(CONFIG, f)
    run([BENCH, "make-model", "--config", config, "-o", MODEL], check=True)


def plan(*options):
    """A run that would be refused is planned, too, and ends as it would."""
    p = run([COORDINATOR, "plan", "--model", MODEL, "--bandwidth", "10", "--json", *SIZES,
             *options])
    memory_plan = json.loads(p.stdout)["memory"]
    assert p.returncode == (0 if memory_plan["fits"] else 2), p.stderr
    return memory_plan


def generate(*options, group=None, **kw):
    if group:
        kw["preexec_fn"] = group.join
    return run([COORDINATOR, "generate", "--model", MODEL, *RUN, *SIZES, *options], timeout=120,
               **kw)


def tokens_of(p):
    try:
        return json.loads(p.stdout)["tokens"]
    except ValueError:
        return None


def resident_pages(begin, end):
    """How many pages of a range of the model are in the page cache."""
    page = mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                          ctypes.c_int, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    fd = os.open(MODEL, os.O_RDONLY)
    length = (end - begin) // page * page
    at = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, begin)
    os.close(fd)
    there = ctypes.create_string_buffer(length // page)
    libc.mincore(at, length, there)
    libc.munmap(at, length)
    return sum(byte[0] & 1 for byte in there), length // page


def check_kept(expected, budget, *options):
    """One run, its high-water mark against its budget."""
    memory.drop_cache(MODEL)  # so that the group pays for every page
    with memory.make_group() as group:
        p = generate("--memory", str(budget), *options, group=group)
        peak = group.peak()
    what = " ".join(options) or "defaults"
    note("%s: allowed %.1f MiB, peak %.1f MiB" % (what, budget / MIB, peak / MIB))
    if not ok(p.returncode == 0 and tokens_of(p) == expected and peak <= budget,
              "%.1f MiB are kept: %s" % (budget / MIB, what)):
        note("status %d: %s" % (p.returncode, p.stderr.decode()[-500:]))


def check_budgets(expected, smallest):
    streamed = ("--experts", "stream")
    for extra in (0, 1, 9, 33):
        check_kept(expected, smallest + extra * MIB, *streamed)
    check_kept(expected, smallest + 40 * MIB, *streamed, "--stage-workers", "2", "--io-workers",
               "2")
    check_kept(expected, smallest + 40 * MIB, *streamed, "--weights", "huge")
    check_kept(expected, smallest + 9 * MIB, *streamed, "--overlap", "sync")
    whole = plan("--experts", "resident")["need"]
    check_kept(expected, whole, "--experts", "resident")
    check_kept(expected, whole)


def check_limit(expected, limit, *options):
    """The default fits itself into a limited group; nobody is killed."""
    memory.drop_cache(MODEL)
    with memory.make_group() as group:
        group.limit(limit)
        p = generate("-v", *options, group=group)
        peak, killed = group.peak(), group.killed()
    note("limit %.1f MiB, peak %.1f MiB" % (limit / MIB, peak / MIB))
    if not ok(p.returncode == 0 and tokens_of(p) == expected and killed == 0,
              "the default fits a limit of %.1f MiB: %s" % (limit / MIB, " ".join(options))):
        note("status %d, %d killed: %s" % (p.returncode, killed, p.stderr.decode()[-500:]))


def check_too_small_a_limit(smallest):
    with memory.make_group() as group:
        group.limit(smallest * 3 // 4)
        p = generate(group=group)
        err = p.stderr.decode()
        if not ok(p.returncode == 1 and "available here" in err and "4 experts at a time" in err and
                  group.killed() == 0, "a limit that can't hold the run is found at the start"):
            note("status %d: %s" % (p.returncode, err))


def check_experts_not_mapped():
    bank = os.path.getsize(MODEL) // 4  # the bank is the last five sixths of this file
    memory.drop_cache(MODEL)
    p = generate("--experts", "stream", "--expert-cache", "8M")
    stray, pages = resident_pages(bank // mmap.PAGESIZE * mmap.PAGESIZE, os.path.getsize(MODEL))
    note("%d of %d pages" % (stray, pages))
    ok(p.returncode == 0 and stray <= pages * STRAY_SHARE_MAX,
       "streamed experts don't come into the page cache")


def check_refusals(smallest):
    for budget in (smallest - MIB, smallest // 2, MIB):
        p = generate("--memory", str(budget))
        err = p.stderr.decode().strip()
        if not ok(p.returncode == 2 and len(err.splitlines()) == 1 and p.stdout == b"" and
                  "4 experts at a time (one layer wants 4)" in err and
                  "--memory allows %.1f MiB" % (budget / MIB) in err and "raise it" in err,
                  "%.1f MiB are refused in a sentence" % (budget / MIB)):
            note("status %d: %s" % (p.returncode, err))
        q = run([COORDINATOR, "plan", "--model", MODEL, *SIZES, "--memory", str(budget)])
        ok(q.returncode == 2 and q.stdout == b"" and
           q.stderr.replace(b" plan", b" generate").decode().strip() == err,
           "plan ends with the same sentence and status")
    p = generate("--memory", str(smallest + 8 * MIB), "--experts", "resident")
    ok(p.returncode == 2 and b"--experts stream" in p.stderr, "resident experts that don't fit")
    p = generate("--memory", str(smallest + 8 * MIB), "--expert-cache", "40M")
    ok(p.returncode == 2 and b"--expert-cache" in p.stderr, "an expert cache that doesn't fit")
    p = generate("--memory", str(smallest + 8 * MIB), "--batch", "64")
    ok(p.returncode == 2 and b"--batch" in p.stderr, "KV caches that don't fit")


def check_small_shm(expected):
    argv = [COORDINATOR, "generate", "--model", MODEL, *RUN, *SIZES, "--experts", "stream"]
    p = run(memory.with_tmpfs("/dev/shm", 2 * MIB, argv))
    if not ok(p.returncode == 1 and b"remount,size=" in p.stderr and
              b"/dev/shm has 2.0 MiB" in p.stderr, "a /dev/shm that is too small is refused with the remedy"):
        note("status %d: %s" % (p.returncode, p.stderr.decode()))
    p = run(memory.with_tmpfs("/dev/shm", 12 * MIB, argv))
    if not ok(p.returncode == 0 and tokens_of(p) == expected and b"remount,size=" in p.stderr and
              b"/dev/shm has 12.0 MiB" in p.stderr, "one that limits the expert cache is told about"):
        note("status %d: %s" % (p.returncode, p.stderr.decode()))


def check_full_drive():
    """Rows of 200 tokens are 12 MiB."""
    folder = os.path.join(HOME, "small")
    os.mkdir(folder)
    out = os.path.join(folder, "rows.npy")
    argv = [COORDINATOR, "score", "--model", MODEL, "--tokens", PROMPT, "--logits", out, *SIZES]
    p = run(memory.with_tmpfs(folder, MIB, argv))
    if not ok(p.returncode == 1 and p.stdout == b"" and
              b"rows.npy: needs 13 MiB, its file system has 1 MiB free" in p.stderr, "a drive too full for the output is found before the work"):
        note("status %d: %s" % (p.returncode, p.stderr.decode()))


def without_memlock():
    """For preexec_fn: no right to lock memory beyond 64 KiB."""
    cap_ipc_lock, pr_capbset_drop = 14, 24
    ctypes.CDLL(None).prctl(pr_capbset_drop, cap_ipc_lock, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))


def check_memlock(expected):
    p = generate("--experts", "stream", "--expert-cache", "16M", preexec_fn=without_memlock,
                 env=environment(VFLOW_LOG="info"))
    err = p.stderr.decode()
    if "uring" not in err:
        note("SKIP no io_uring here: memlock")
    elif not ok(p.returncode == 0 and tokens_of(p) == expected and
                err.count("RLIMIT_MEMLOCK") == 1 and "ulimit -l" in err, "a small RLIMIT_MEMLOCK: said once, read without"):
        note("status %d: %s" % (p.returncode, err[-800:]))


def is_sanitized():
    with open(COORDINATOR, "rb") as f:
        return b"__asan_init" in f.read() or b"__tsan_init" in f.read()


def main():
    make_model()
    expected = tokens_of(generate("--experts", "resident"))
    ok(expected is not None and len(expected) == TOKENS, "a run with resident experts")
    smallest = plan("--memory", "1M")["need"]
    check_refusals(smallest)
    check_experts_not_mapped()
    check_memlock(expected)
    if memory.can_unshare():
        check_small_shm(expected)
        check_full_drive()
    else:
        note("SKIP no mount namespaces here: /dev/shm, a full drive")
    group = memory.make_group()
    if not group:
        note("SKIP memory control groups aren't writable: high-water marks")
    elif is_sanitized():
        note("SKIP a sanitizer's own memory isn't planned: high-water marks")
    else:
        check_budgets(expected, smallest)
        check_limit(expected, smallest + 24 * MIB)
        check_limit(expected, smallest + 48 * MIB, "--stage-workers", "2")
        check_too_small_a_limit(smallest)
    if group:
        with group:
            pass
    done()


if __name__ == "__main__":
    if not hasattr(os, "posix_fadvise"):
        skip_all("no posix_fadvise")
    main()
