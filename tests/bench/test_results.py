"""Each benchmark once, as short as it goes: a table, JSON with the documented keys and sensible
numbers, and a drawing that is well-formed XML with marks inside the picture."""
import math
import os
import re
import xml.etree.ElementTree as ET

import bench
from bench import BENCH, HOME, model, result, run
from tap import done, note, ok

DENSE = model("dense")
CFLOW = model("dense", "cflow")
DUAL = model("dual", num_flows=2, flow_coupling=["query", "mlp_hidden", "mlp_output"])
MOE = model("moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=128)

SVG_NS = "{http://www.w3.org/2000/svg}"
OVER = ["speedup", "speedup_min", "speedup_max"]
# name: (arguments, keys of the object, {table: keys of each row}, keys that may be null or zero)
COMMANDS = {
    "ceiling": (["--samples", "5", "--threads", "2"], ["samples"],
                {"rows": ["threads", "gb_per_s", "gb_per_s_min", "gb_per_s_p10", "gb_per_s_p90",
                          "gb_per_s_max", "low_level", "high_level", "histogram"]},
                ["low_level", "high_level"]),
    "matvec": (["--shape", "olmoe-down", "--seconds", "0.001"], ["threads"],
               {"rows": ["kernel", "weights", "activations", "shape", "rows", "cols", "columns",
                         "gb_per_s", "read_gb_per_s", "share", "share_min", "share_max",
                         "gmac_per_s"]}, []),
    "layout": (["--no-misses", "--seconds", "0.001"], ["kernel", "threads"],
               {"wall_clock": ["shape", "activations", "walk", "gb_per_s", "gb_per_s_min",
                               "gb_per_s_max", "tiled_speedup", "tiled_speedup_min",
                               "tiled_speedup_max"]}, []),
    "fused": (["--seconds", "0.001", "--threads", "2"], ["kernel", "threads"],
              {"rows": ["projection", "columns", "separate_us", "fused_us"] + OVER}, []),
    "prefetch": (["--seconds", "0.001"], ["kernel", "threads"],
                 {"rows": ["weights", "pages", "shape", "columns", "gb_per_s_on", "gb_per_s_off",
                           "read_gb_per_s"] + OVER}, []),
    "hop": (["--samples", "20"], ["samples"],
            {"rows": ["hop", "us", "us_min", "us_p10", "us_p90", "us_max"]}, []),
    "decode": ([DENSE, "--tokens", "2", "--samples", "3", "--prompt", "9", "--chunk", "4",
                "--foreign", "--ops"],
               ["model", "kernel", "threads", "samples", "decode_tokens_per_s", "ms_per_token",
                "bytes_per_token", "gb_per_s", "read_in_order_gb_per_s", "share_of_read_in_order",
                "ceiling_gb_per_s", "share_of_ceiling",
                "prompt_tokens", "prefill_tokens_per_s", "foreign_slowdown"],
               {"figures": ["figure", "unit", "median", "min", "max"],
                "operations": ["operation", "decode_us", "decode_share", "prefill_us",
                               "prefill_share"],
                "process": ["part", "us", "share"]},
               ["us", "share", "prefill_us", "prefill_share"]),
    "flows": ([DENSE, DUAL, "--tokens", "5"], ["threads", "tokens", "ratio", "ratio_p10"],
              {"rows": ["flows", "ms_per_token", "ms_p10", "ms_p90", "over_one", "over_one_p10",
                        "over_one_p90"]}, []),
    "formats": ([CFLOW, DENSE, "--tokens", "5"], ["threads", "tokens"],
                {"rows": ["file", "format", "ms_per_token", "ms_p10", "ms_p90", "over_first",
                          "over_first_p10", "over_first_p90"]}, []),
    "workers": ([MOE, "--tokens", "5", "--threads", "1"], ["tokens"],
                {"rows": ["stage_workers", "threads", "tokens_per_s", "ms_per_token", "ms_p10",
                          "ms_p90", "compute_us", "stall_us", "rest_us", "over_one_worker",
                          "over_one_worker_p10", "over_one_worker_p90", "speedup"]},
                ["stall_us", "compute_us", "rest_us"]),
}


def faults(obj, keys, free):
    """What is wrong with an object: keys that lack, numbers that aren't positive and finite."""
    wrong = ["no " + k for k in keys if k not in obj]
    for k, v in obj.items():
        if isinstance(v, list) or k in free:
            continue
        if isinstance(v, str):
            good = v != ""
        else:
            good = isinstance(v, (int, float)) and math.isfinite(v) and v > 0
        if not good:
            wrong.append("%s is %r" % (k, v))
    return wrong


def check_json(name, argv, keys, tables, free):
    got = result(name, *argv)
    wrong = faults(got, ["benchmark"] + keys, free)
    for table, columns in tables.items():
        rows = got.get(table) or []
        if not rows:
            wrong.append("no rows in " + table)
        for row in rows:
            wrong += faults(row, columns, free)
    if not ok(not wrong, name + " gives JSON with its keys and positive numbers"):
        note("; ".join(wrong[:10]))
    return got


def near_its_mark(number, marks):
    """A median's number ends inside its bar's end, or begins right behind its bar's or stroke's."""
    x, y = float(number.get("x")), float(number.get("y"))
    return any(abs(x - mx) <= 8 and abs(y - my) <= 12 for mx, my in marks)


def ends_of_marks(root):
    """Where the bars of a chart end, and the strokes that are medians of dots."""
    for e in root.iter(SVG_NS + "rect"):
        if e.get("x") and e.get("class").startswith("f"):
            yield (float(e.get("x")) + float(e.get("width")),
                   float(e.get("y")) + float(e.get("height")) / 2)
    for e in root.iter(SVG_NS + "path"):
        stroke = re.fullmatch(r"M[\d.]+ ([\d.]+)H([\d.]+)", e.get("d"))
        if stroke and e.get("class") == "ink thick":
            yield float(stroke.group(2)), float(stroke.group(1))


def of_class(root, css):
    return [t for t in root.iter(SVG_NS + "text") if css in t.get("class").split()]


def svg_faults(root, text):
    marks = [e for e in root.iter() if e.tag[len(SVG_NS):] in ("rect", "circle", "text")]
    wrong = [] if len(marks) > 5 else ["%d marks" % len(marks)]
    for e in marks:
        if e.get("width") == "100%":
            continue
        x, y = float(e.get("x") or e.get("cx")), float(e.get("y") or e.get("cy"))
        if not (0 <= x <= 900 and 0 <= y <= float(root.get("height"))):
            wrong.append("a mark at %g, %g" % (x, y))
    if float(root.get("width")) != 900 or "prefers-color-scheme:dark" not in text:
        wrong.append("not one page wide on light and dark ground")
    if "nan" in text or "inf" in text.replace("info", ""):
        wrong.append("a number that isn't finite")
    panels, titles = of_class(root, "panel"), of_class(root, "axis-title")
    if len(titles) != 2 * len(panels) or not all(t.text for t in titles):
        wrong.append("%d panels, %d names of axes" % (len(panels), len(titles)))
    ends = list(ends_of_marks(root))
    wrong += ["the median %s stands apart" % n.text for n in of_class(root, "median")
              if not near_its_mark(n, ends)]
    spread = [e for e in root.iter(SVG_NS + "path")
              if e.get("class") == "ink" and not re.search("m0 -3v6$", e.get("d"))]
    named = [t.text for t in of_class(root, "label") if re.match("p10 to p90|least to most", t.text)]
    if bool(spread) != bool(named):
        wrong.append("%d whiskers drawn, %r named" % (len(spread), named))
    return wrong


def check_svg(name, path):
    """Well-formed, every mark inside one page's width, both axes named, numbers at their marks, and
    a legend of what is drawn."""
    with open(path) as f:
        text = f.read()
    wrong = svg_faults(ET.fromstring(text), text)
    if not ok(not wrong, name + " draws a chart that can be read"):
        note("; ".join(wrong[:10]))


for NAME, (ARGV, KEYS, TABLES, FREE) in COMMANDS.items():
    SVG = os.path.join(HOME, NAME + ".svg")
    check_json(NAME, [*ARGV, "--svg", SVG], KEYS, TABLES, FREE)
    check_svg(NAME, SVG)

P = run([BENCH, "flows", DENSE, DUAL, "--tokens", "5"], check=True)
LINES = P.stdout.decode().splitlines()
ok(len(LINES) == 3 and LINES[0].split()[0] == "flows" and
   [line.split()[0] for line in LINES[1:]] == ["1", "2"], "without --json there is a table")

WORKERS = result("workers", MOE, "--tokens", "5", "--threads", "1,2", "--workers", "1,2")
ok([(r["stage_workers"], r["threads"]) for r in WORKERS["rows"]] ==
   [(1, 1), (2, 1), (1, 2), (2, 2)], "workers runs every combination")
ok(WORKERS["rows"][0]["over_one_worker"] == 1 and WORKERS["rows"][2]["over_one_worker"] == 1,
   "one worker is what others are measured against")
done()
