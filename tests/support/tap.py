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


def small_data_dir():
    """The small set of test data that is part of the source."""
    return os.path.join(source_dir(), "tests", "golden")


def shared_dir():
    """Where the test data lie: VFLOW_SHARED, else ../shared beside the source, else the small set."""
    given = os.environ.get("VFLOW_SHARED")
    beside = os.path.join(source_dir(), "..", "shared")
    path = given or (beside if os.path.isdir(os.path.join(beside, "golden")) else small_data_dir())
    if not os.path.isdir(os.path.join(path, "golden")):
        sys.exit("not ok - no test data in %s" % path)
    return path


def dual_mixture_dir():
    """The trained dual-flow mixture of experts; beside the small set, the random one of its form."""
    trained = os.path.join(shared_dir(), "models", "tiny_dual_moe")
    random = os.path.join(shared_dir(), "golden", "dual_moe_replay")
    return trained if os.path.isdir(trained) else random


def program(name):
    path = os.path.join(os.environ.get("VFLOW_BIN", ""), name)
    if not os.path.isfile(path):
        skip_all("VFLOW_BIN has no %s" % name)
    return path
