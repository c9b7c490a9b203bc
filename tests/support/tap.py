"""TAP for Python tests: ok(), note(), done(); an exit status that ctest understands."""
import os
import sys

_run = _failed = 0


def ok(passed, text):
    global _run, _failed
    _run += 1
    _failed += not passed
    print("%sok %d - %s" % ("" if passed else "not ", _run, text), flush=True)
    return bool(passed)


def note(text):
    print("# " + text, flush=True)


def skip_all(why):
    print("1..0 # SKIP " + why, flush=True)
    sys.exit(77)


def done():
    print("1..%d" % _run, flush=True)
    sys.exit(1 if _failed or not _run else 0)


def source_dir():
    return os.environ.get("VFLOW_SOURCE") or os.path.abspath(
        os.path.join(os.path.dirname(__file__), "..", ".."))


def shared_dir():
    path = os.environ.get("VFLOW_SHARED") or os.path.join(source_dir(), "..", "shared")
    if not os.path.isdir(path):
        skip_all("no shared data at %s" % path)
    return path


def program(name):
    path = os.path.join(os.environ.get("VFLOW_BIN", ""), name)
    if not os.path.isfile(path):
        skip_all("VFLOW_BIN has no %s" % name)
    return path
