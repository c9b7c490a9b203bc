"""Fails when a test was skipped that isn't expected to be.

    check_skips.py RESULTS.xml EXPECTED

RESULTS.xml is what `ctest --output-junit` wrote. A line of EXPECTED is "NAME: REASON"; a skip is
expected when the test printed "1..0 # SKIP REASON".
"""
import re
import sys
import xml.etree.ElementTree as ET


def read_expected(path):
    with open(path) as file:
        lines = [line.strip() for line in file]
    return {tuple(line.split(": ", 1)) for line in lines if line and not line.startswith("#")}


def read_skipped(path):
    """[(name, reason)]"""
    skipped = []
    for case in ET.parse(path).getroot().iter("testcase"):
        if case.find("skipped") is not None or case.get("status") == "notrun":
            said = re.search(r"^1\.\.0 # SKIP (.*)$", case.findtext("system-out") or "", re.M)
            skipped.append((case.get("name"), said.group(1) if said else "it doesn't say why"))
    return skipped


def main():
    expected, skipped = read_expected(sys.argv[2]), read_skipped(sys.argv[1])
    unexpected = [skip for skip in skipped if skip not in expected]
    for name, reason in skipped:
        print("%s: %s: %s" % ("skipped" if (name, reason) in expected else "SKIPPED BUT NOT EXPECTED",
                              name, reason), file=sys.stderr)
    sys.exit(1 if unexpected else 0)


if __name__ == "__main__":
    main()
