"""The plan command from outside: numbers of the paper, invariants of the JSON, files, refusals.

Usage: test_plan.py PLAN_COMMAND
"""
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap

PLAN = os.path.abspath(sys.argv[1])
results = []


def ok(passed, text):
    results.append(bool(passed))
    print(f"{'ok' if passed else 'not ok'} {len(results)} - {text}")
    return passed


def run(*args, stdout=subprocess.PIPE):
    p = subprocess.run([PLAN, *args], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60)
    return p.returncode, p.stdout, p.stderr


def plan_json(*args):
    code, out, err = run(*args, "--json", "--bandwidth", "10")
    assert code == 0, err
    return json.loads(out)


BIG = {  # the 8.34B model of the pipeline-native report
    "model_type": "pipeline_native", "combine_style": "delayed_sum", "dense_delay": 1,
    "expert_delay": 2, "hidden_size": 8192, "num_hidden_layers": 4, "num_attention_heads": 64,
    "intermediate_size": 32768, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 4096, "vocab_size": 50257}
ARCH2 = {
    "model_type": "pipeline_native", "combine_style": "delayed_sum", "dense_delay": 1,
    "expert_delay": 2, "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
    "intermediate_size": 2048, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 512, "vocab_size": 50257}


def write_config(name, config):
    with open(name, "w", encoding="utf-8") as f:
        json.dump(config, f)
    return name


def record_bytes(rows, cols, record=288):
    return -(-rows // 16) * -(-cols // 32) * record


def test_paper_numbers():
    big, arch2 = write_config("big.json", BIG), write_config("arch2.json", ARCH2)
    code, out, _ = run("--config", big, "--bandwidth", "10")
    ok(code == 0 and "parameters       8,339,939,328\n" in out, "8,339,939,328 parameters")
    ok(plan_json("--config", big)["parameters"] == 8339939328, "the same in JSON")
    code, out, _ = run("--config", arch2, "--bandwidth", "10")
    ok(re.search(r"naive +9\.00 MB/token", out) and re.search(r"critical +4\.50 MB/token", out),
       "arch2_4: naive 9.00, critical 4.50 MB/token")
    c = plan_json("--config", arch2)["critical_path"]
    ok((c["naive_mb_per_token"], c["critical_mb_per_token"], c["serial_mb_per_token"]) ==
       (9.0, 4.5, 16.5), "the same in JSON, and 16.5 serial")
    ok(c["program_three_streams_mb_per_token"] == 8.0, "the program itself: 8.00 MB/token")


def test_table():
    code, out, err = run("--table", "--json")
    table = {r["name"]: r for r in json.loads(out)}
    paper = {"arch1_decoupled_streams": ("9.00", "9.00"), "arch2_4_combined": ("9.00", "4.50"),
             "arch2_4_sync": ("9.00", "4.50"), "arch3_pipeline_registers": ("9.00", "9.00"),
             "arch4_async_experts": ("9.00", "9.00"), "arch5_fixed_point": ("14.06", "14.06")}
    ok(set(table) == set(paper) and all(
        ("%.2f" % table[n]["naive_mb_per_token"],
         "%.2f" % table[n]["critical_mb_per_token"]) == want for n, want in paper.items()),
       "table 4.1 to the last printed digit")
    code, out, err = run("--table", "--config", "arch2.json")
    ok(code == 2 and "--table" in err and out == "", err.strip())


def test_bytes():
    p = plan_json("--config", "arch2.json")
    t, s = p["bytes_per_token"], p["stored_bytes"]
    ok(t["attention"] == 6 * 4 * record_bytes(512, 512), "attention's bytes at q4")
    ok(t["dense"] == 5 * 3 * record_bytes(2048, 512), "five layers of dense: layer 0's is zero")
    ok(t["experts"] == 6 * 2 * 3 * record_bytes(512, 512), "two experts in every layer")
    ok(t["head"] == record_bytes(50257, 512), "the head")
    ok(s["dense"] == 6 * 3 * record_bytes(2048, 512), "every dense matrix is stored")
    expert = 3 * record_bytes(512, 512)
    ok(p["placement"]["expert_record_bytes"] == -(-expert // 4096) * 4096 and
       s["experts"] == 6 * 8 * p["placement"]["expert_record_bytes"], "experts are stored in pages")
    ok(all(sum(v for k, v in d.items() if k != "total") == d["total"] for d in (t, s)), "totals")
    ratio = [plan_json("--config", "arch2.json", "--quant", q)["bytes_per_token"]["attention"]
             for q in ("q4", "q8", "f16", "f32")]
    ok([r / ratio[0] for r in ratio] == [1, 544 / 288, 1024 / 288, 2048 / 288], "--quant")


def test_program():
    p = plan_json("--config", "arch2.json", "--stage-workers", "3")
    ops, made = p["program"], {}
    in_order = all(o["index"] == i for i, o in enumerate(ops))
    for o in ops:
        in_order &= all(v in made for v in o["inputs"])
        if o["output"]:
            in_order &= o["output"] not in made
            made[o["output"]] = o["worker"]
    ok(in_order, "values are made once, before they are read")
    crossing = {(v, made[v], o["worker"]) for o in ops for v in o["inputs"]
                if made[v] != o["worker"]}
    edges = [(e["value"], e["from"], e["to"]) for e in p["edges"]]
    ok(edges and set(edges) == crossing and len(set(edges)) == len(edges),
       "edges are exactly the values that cross")
    ok(all(e["bytes"] == 512 * 4 for e in p["edges"]), "a residual weighs 512 floats")
    ok(sum(o["bytes"] for o in ops) == p["bytes_per_token"]["total"] ==
       sum(p["placement"]["worker_bytes_per_token"]), "bytes by op, part and worker agree")
    e = p["expected"]
    ok(abs(e["token_ms"] - e["path_bytes"] / 10e6) < 1e-9 and e["bandwidth_source"] == "given" and
       abs(e["tokens_per_s"] * e["token_ms"] - 1000) < 1e-6, "expected time at 10 GB/s")
    one = plan_json("--config", "arch2.json")
    ok(one["edges"] == [] and one["expected"]["path_bytes"] == one["bytes_per_token"]["total"],
       "one worker reads everything, one thing after another")
    ok(e["path_bytes"] < one["expected"]["path_bytes"],
       "three workers overlap: late experts run beside the next group")
    _, text, _ = run("--config", "arch2.json", "--bandwidth", "10", "--stage-workers", "3", "--ops")
    rows = re.findall(r"^ +(\d+) +(\d+)  (\w+)", text, re.M)
    ok([(int(a), int(b), c) for a, b, c in rows] ==
       [(o["index"], o["worker"], o["op"]) for o in ops], "the text lists the same ops")
    ok(all(f"{e['value']} " in text for e in p["edges"]), "and the same edges")
    _, text, _ = run("--config", "arch2.json", "--bandwidth", "10")
    first = text.split("\n\n")[0]
    ok("program\n" not in text and all(f"\n{w} " in first for w in ("parameters", "memory", "the run",
                                                                  "bandwidth", "token")),
       "without --ops there is no list; the answer comes first")


def test_memory():
    moe = write_config("moe.json", dict(ARCH2, num_experts=64, num_hidden_layers=12))
    m = plan_json("--config", moe, "--ctx", "512", "--memory", "64G")["memory"]
    record = -(-3 * record_bytes(512, 512) // 4096) * 4096
    ok(m["fits"] and m["allowed"] == 64 << 30 and m["allowed_by"] == "option" and
       m["experts"] == "resident" and m["items"]["experts"] == 12 * 64 * record and
       m["items"]["kv"] == 12 * 2 * 512 * 512 * 2, "memory: everything fits")
    ok(sum(m["items"].values()) == m["need"], "memory: the items add up")
    less = m["need"] - 20 * record
    s = plan_json("--config", moe, "--ctx", "512", "--memory", str(less))["memory"]
    ok(s["fits"] and s["experts"] == "streamed" and less - 2 * record < s["need"] <= less and
       s["items"]["experts"] == s["cache_slots"] * record and s["shm"] > s["items"]["experts"],
       "memory: what is left is the expert cache")
    code, out, err = run("--config", moe, "--ctx", "512", "--memory", "8M", "--json")
    refused = json.loads(out)
    r = refused["memory"]
    ok(code == 2 and r["refused"] in err and "expected" not in refused and err.count("\n") == 1,
       "memory: a refusal as JSON has no speeds and the run's status")
    ok(not r["fits"] and "--memory allows 8.0 MiB" in r["refused"] and r["need"] > 8 << 20 and
       r["cache_slots"] == 2, "memory: one layer's experts are the least")
    code, out, err = run("--config", moe, "--ctx", "512", "--memory", "8M", "--svg", "refused.svg")
    ok(code == 2 and out == "" and r["refused"] in err and err.count("\n") == 1 and
       not os.path.exists("refused.svg"), "memory: a refusal is one sentence: " + err.strip())


def drive(config, *args):
    """What is expected of a streamed run at 10 GB/s of memory and 1 GB/s of the drive."""
    return plan_json("--config", config, "--experts", "stream", "--drive-speed", "1000000000",
                     *args)["expected"]


def test_drive():
    record = plan_json("--config", "arch2.json")["placement"]["expert_record_bytes"]
    quarter = str((6 * 8 // 4) * record)
    e = drive("arch2.json", "--expert-cache", quarter)
    d = e["drive"]
    # six slots are of experts on their way: two a layer, due two layers later
    ok(abs(d["hit_share"] - (12 - 6) / (48 - 6)) < 1e-9 and
       abs(d["bytes_per_token"] - 12 * (1 - d["hit_share"]) * record) < 1e-3,
       "hits are the cache's share beside what is on its way: %.3f" % d["hit_share"])
    ok(d["source"] == "given" and abs(d["read_ms"] - d["bytes_per_token"] / 1e6) < 1e-9,
       "and the drive takes its bytes over its speed")
    both, memory = d["read_ms"] + e["memory_ms"], e["memory_ms"]
    ok(max(d["read_ms"], memory) <= e["token_ms"] < both - 0.5 * min(d["read_ms"], memory),
       "a delay hides reads: %.3f ms of %.3f" % (e["token_ms"], both))
    s = drive("arch2.json", "--expert-cache", quarter, "--overlap", "sync")
    ok(0 <= both - s["token_ms"] < 0.005, "--overlap sync hides none, but for norms")
    plain = write_config("plain_moe.json", {
        "model_type": "mixtral", "hidden_size": 512, "num_hidden_layers": 6,
        "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 512,
        "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 512,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 1e6})
    n = drive(plain, "--expert-cache", quarter)
    ok(abs(n["token_ms"] - n["memory_ms"] - n["drive"]["read_ms"]) < 1e-6,
       "nor does an ordinary mixture have anything to hide reads behind")
    args = ("--config", "arch2.json", "--experts", "stream", "--expert-cache", quarter)
    t = plan_json(*args, "--io-throttle", "5000000", "--io-workers", "2")["expected"]
    ok(t["drive"]["source"] == "throttled" and t["drive"]["bytes_per_second"] == 1e7 and
       abs(1000 / t["token_ms"] - t["tokens_per_s"]) < 1e-6, "--io-throttle is the drive's speed")
    u = plan_json(*args)["expected"]
    _, text, _ = run(*args, "--bandwidth", "10")
    ok(u["token_ms"] is None and u["tokens_per_s"] is None and u["drive"]["bytes_per_token"] > 0 and
       "tokens/s" not in text and "--drive-speed" in text,
       "a drive of unknown speed: bytes and no tokens/s")
    ok(plan_json("--config", "arch2.json", "--experts", "resident")["expected"]["drive"] is None,
       "in memory there is no drive")


def test_active():
    mixtures = {  # the geometry of models whose publishers name their active parameters
        3.3: {"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
              "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
              "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
              "vocab_size": 151936, "norm_topk_prob": True},
        1.2: {"model_type": "olmoe", "hidden_size": 2048, "num_hidden_layers": 16,
              "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 64,
              "num_experts_per_tok": 8, "intermediate_size": 1024, "vocab_size": 50304},
        12.8: {"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32,
               "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
               "num_experts_per_tok": 2, "intermediate_size": 14336, "vocab_size": 32000}}
    for billions, config in mixtures.items():
        path = write_config("active.json", dict(
            config, max_position_embeddings=4096, rms_norm_eps=1e-5, rope_theta=1e6,
            tie_word_embeddings=False))
        p = plan_json("--config", path, "--memory", "200G", "--experts", "resident")
        n = p["active_parameters"]
        ok(billions <= n / 1e9 < billions + 0.1, f"{config['model_type']}: {n} active parameters")
    p = plan_json("--config", "arch2.json")
    ok(p["active_parameters"] == p["parameters"] - 6 * 6 * 3 * 512 * 512,
       "active: all but six experts of every layer")


def test_measured():
    code, out, err = run("--config", "arch2.json", "--threads", "1")
    m = re.search(r"bandwidth +([0-9.]+) GB/s, measured here with 1 thread:", out)
    ok(code == 0 and m and 0.05 < float(m.group(1)) < 5000, f"measured: {m and m.group(1)} GB/s")


SVG_NS = "{http://www.w3.org/2000/svg}"


def draw(name, config, *args):
    """The drawing of a config's plan, and the plan itself."""
    path = write_config(name + ".json", config)
    code, _, err = run("--config", path, "--bandwidth", "10", "--svg", name + ".svg", *args)
    assert code == 0, err
    return ET.parse(name + ".svg").getroot()


def boxes(root, kind):
    return [r for r in root.iter(SVG_NS + "rect")
            if re.match(rf"op \d+: {kind},", r.findtext(SVG_NS + "title") or "")]


def texts(root, css):
    return [t.text for t in root.iter(SVG_NS + "text") if css in t.get("class").split()]


def links(root, css):
    """Paths of a class that aren't a legend's."""
    return [p for g in root.iter(SVG_NS + "g") for p in g.iter(SVG_NS + "path")
            if p.get("class") == css]


def page_faults(root):
    """What keeps a drawing from being read at one page's width on light and dark ground."""
    wrong = [] if float(root.get("width")) <= 900 else ["a width of " + root.get("width")]
    height = float(root.get("height"))
    for e in root.iter():
        if e.tag == SVG_NS + "rect" and e.get("x"):
            if float(e.get("x")) < 0 or float(e.get("x")) + float(e.get("width")) > 900.1:
                wrong.append(f"a box at {e.get('x')} of {e.get('width')}")
        if e.tag == SVG_NS + "text":
            size, x = len(e.text or "") * 6, float(e.get("x"))
            left = x - {"end": size, "middle": size / 2}.get(e.get("text-anchor"), 0)
            if left < -6 or left + size > 906 or not 0 < float(e.get("y")) < height:
                wrong.append("outside: " + e.text)
    style = root.findtext(SVG_NS + "style")
    if "prefers-color-scheme:dark" not in style:
        wrong.append("no dark ground")
    for e in root.iter():
        if e.get("fill") or e.get("stroke"):
            wrong.append(f"a colour outside the style sheet: {e.attrib}")
    views = len(texts(root, "panel"))
    if texts(root, "axis-title") != ["MB read", "ms at 10 GB/s"] * views:
        wrong.append("axes without names")
    return wrong


def legend_faults(root):
    """Entries of the legend for which nothing is drawn, and what is drawn without an entry."""
    wrong, entries = [], texts(root, "label")
    kinds = {"attention": "attention", "dense FFN": "dense", "experts": "experts",
             "router": "route"}
    strokes = {"attention delay: older residual to attention": "s0 dashed",
               "dense delay: older residual to FFN": "s1 dashed",
               "expert delay: routed, being read": "s2 dashed",
               "expert delay: computed, not yet due": "s2",
               "value sent to another worker": "s4 dotted thick"}
    for name, drawn in [(n, boxes(root, k)) for n, k in kinds.items()] + \
                       [(n, links(root, k)) for n, k in strokes.items()]:
        if (name in entries) != bool(drawn):
            wrong.append(f"{name}: {len(drawn)} drawn")
    return wrong


def check_drawing(name, root):
    wrong = page_faults(root) + legend_faults(root)
    if not ok(not wrong, name + ": one page wide, axes with names, a legend of what is drawn"):
        print("# " + "; ".join(wrong[:5]))
    return texts(root, "panel")


def test_svg():
    code, _, err = run("--config", "arch2.json", "--bandwidth", "10", "--svg", "plan.svg",
                       "--stage-workers", "2")
    ok(code == 0 and os.listdir(".").count("plan.svg") == 1 and
       not [f for f in os.listdir(".") if f.endswith(".tmp")], "one whole file, nothing beside it")
    wide = dict(ARCH2, vocab_size=256)
    plain = {k: v for k, v in wide.items() if not re.search("delay|style|expert|moe", k)}
    four = draw("four", dict(wide, num_hidden_layers=4))
    counts = {k: len(boxes(four, k)) for k in ("attention", "dense", "experts", "route")}
    ok(len(check_drawing("four layers", four)) == 2 and
       counts == {"attention": 8, "dense": 6, "experts": 8, "route": 8},
       f"two timelines, every op a box in both: {counts}")
    w = [float(boxes(four, k)[0].get("width")) for k in ("attention", "dense")]
    ok(abs(w[1] / w[0] - 3) < 0.02, "boxes are as wide as their bytes")
    deep = draw("deep", dict(ARCH2, num_hidden_layers=48, dense_delay=3), "--stage-workers", "4")
    titles = check_drawing("48 layers on 4 workers", deep)
    ok(len(titles) == 4 and titles[1] == titles[3] == "Layers 12 to 15 of it, enlarged" and
       len(boxes(deep, "attention")) >= 2 * 48 + 2 * 4 and
       {"dense 12", "dense 13", "dense 14", "dense 15"} <= set(texts(deep, "in")),
       "48 layers: whole, and four of them by name, around the step to the second worker")
    late = draw("late", dict(wide, attention_delay=1, num_hidden_layers=16))
    ok(check_drawing("16 layers with an attention delay", late) and links(late, "s0 dashed"),
       "an attention delay is drawn")
    for layers, workers, panels in ((3, 1, 1), (48, 1, 2), (48, 2, 2)):
        one = draw(f"plain{layers}", dict(plain, num_hidden_layers=layers), "--stage-workers",
                   str(workers))
        titles = check_drawing(f"{layers} plain layers, {workers} workers", one)
        ok(len(titles) == panels and "side by side would take as long" in
           " ".join(texts(one, "small")), "without a delay there is one timeline, not two alike")
    odd = draw("a<b&c", ARCH2)
    ok(texts(odd, "title") == ["a<b&c.json"], "a file name is escaped")
    code, _, err = run("--config", "arch2.json", "--bandwidth", "10", "--svg", "none/plan.svg")
    ok(code == 1 and "none/plan.svg" in err and err.count("\n") == 1, err.strip())


def test_refusals():
    cases = [
        ([], 2, "--config"),
        (["--config", "arch2.json", "--model", "m"], 2, "--model"),
        (["--config", "arch2.json", "--placement", "stripe"], 2, "pipeline"),
        (["--config", "arch2.json", "--placement", "stage"], 2, "pipeline"),
        (["--config", "arch2.json", "--stage-workers", "7"], 2, "1 to 6"),
        (["--config", "arch2.json", "--stage-workers", "0"], 2, "stage-workers"),
        (["--config", "arch2.json", "--quant", "q5"], 2, "q4"),
        (["--config", "arch2.json", "--bandwidth", "nan"], 2, "bandwidth"),
        (["--config", "arch2.json", "--bandwidth", "-3"], 2, "bandwidth"),
        (["--config", "arch2.json", "extra"], 2, "extra"),
        (["--model", "m", "--quant", "q4"], 2, "--quant"),
        (["--config", "missing.json"], 3, "missing.json"),
        (["--model", "missing.vflow"], 3, "missing.vflow"),
        (["--model", "arch2.json"], 3, "arch2.json"),
        (["--config", write_config("bad.json", dict(ARCH2, dense_delay=-1))], 3, "dense_delay"),
        (["--config", write_config("type.json", dict(ARCH2, model_type="gpt2"))], 3, "gpt2"),
    ]
    for args, want, word in cases:
        code, out, err = run(*args)
        ok(code == want and word in err and err.count("\n") == 1 and out == "",
           f"{' '.join(args)}: {err.strip()}")
    with open("/dev/full", "w", encoding="utf-8") as full:
        code, _, err = run("--config", "arch2.json", "--bandwidth", "10", stdout=full)
        ok(code == 1 and "stdout" in err, f"a full disk is noticed: {err.strip()}")
        code, _, err = run("--config", "arch2.json", "--bandwidth", "10", "--json", stdout=full)
        ok(code == 1 and "stdout" in err, f"with --json too: {err.strip()}")
    code, out, _ = run("--help")
    ok(code == 0 and "--stage-workers" in out, "--help")


def header_params(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
    total = 0
    for name, t in header.items():
        if name != "__metadata__":
            n = 1
            for s in t["shape"]:
                n *= s
            total += n
    return total


def test_checkpoints():
    shared = tap.shared_dir()
    found = []
    for folder in ("golden", "models"):
        base = os.path.join(shared, folder)
        for name in sorted(os.listdir(base)) if os.path.isdir(base) else []:
            if os.path.exists(os.path.join(base, name, "model.safetensors")):
                found.append(os.path.join(base, name))
    ok(len(found) > 20, f"{len(found)} checkpoints are there")
    for d in found:
        p = plan_json("--config", os.path.join(d, "config.json"))
        ok(p["parameters"] == header_params(os.path.join(d, "model.safetensors")),
           f"{os.path.basename(d)}: {p['parameters']} parameters, as its safetensors file has")


def main():
    os.environ["VFLOW_SOURCE"] = os.path.abspath(os.environ.get("VFLOW_SOURCE", "."))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for test in (test_paper_numbers, test_table, test_bytes, test_program, test_memory,
                     test_drive, test_active, test_measured, test_svg, test_refusals, test_checkpoints):
            try:
                test()
            except Exception as e:  # a crash of one test is that test's failure
                ok(False, f"{test.__name__}: {type(e).__name__}: {e}")
        os.chdir("/")
    print(f"1..{len(results)}")
    return 0 if all(results) else 1


sys.exit(main())
