"""What stands beside a checkpoint's config.json: generation_config.json decides what ends a text,
the chat template and the texts of bos and eos are kept in the model file, from GGUF, too; what is
malformed is named by file and field; NaN and infinities, as Python writes them, harm only where they
are used.
"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(HERE, "..", "gguf")]
import tap
import vflow_reader as reader

import gguf_file as gguf

CONVERT = tap.program("vflow-convert")
COORDINATOR = tap.program("vflow-coordinator")
INSPECT = tap.program("vflow-inspect")
STORIES = os.path.join(tap.shared_dir(), "models", "stories260k")
with open(os.path.join(STORIES, "config.json")) as config_file:
    CONFIG = json.load(config_file)
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 1045368\n" % 0


def run(*arguments):
    return subprocess.run(arguments, capture_output=True, timeout=120, text=True)


def checkpoint(folder, files=(), config=CONFIG):
    """stories260k with these files, objects or texts, beside its weights."""
    path = os.path.join(folder, "checkpoint")
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path)
    for name in ("tokenizer.json", "model.safetensors"):
        shutil.copy(os.path.join(STORIES, name), path)
    for name, content in dict({"config.json": config}, **dict(files)).items():
        with open(os.path.join(path, name), "wb") as file:
            text = content if isinstance(content, (str, bytes)) else json.dumps(content)
            file.write(text if isinstance(text, bytes) else text.encode())
    return path


def convert(folder, files=(), *options, config=CONFIG):
    path = os.path.join(folder, "model.vflow")
    if os.path.exists(path):
        os.remove(path)
    return path, run(CONVERT, checkpoint(folder, files, config), "-o", path, *options)


def chat_of(path):
    """As the second reader finds it, and vflow-inspect --json."""
    shown = json.loads(run(INSPECT, path, "--json").stdout)
    model = reader.ModelFile(path)
    tap.ok(shown["chat"] == model.chat and shown["config"] == model.config,
           "vflow-inspect --json shows it, apart from the config")
    return model.chat


def test_generation(folder):
    def tokens(files, config=CONFIG):
        path, p = convert(folder, files, "--quant", "f32", config=config)
        if p.returncode:
            tap.note(p.stderr)
        c = reader.ModelFile(path).config
        p = run(COORDINATOR, "generate", "--model", path, "-p", "Once upon a time", "-n", "40",
                "--temperature", "0", "--json")
        answer = json.loads(p.stdout)
        return c["eos_token_id"], c["bos_token_id"], answer["reason"], answer["tokens"]

    want = tokens((), dict(CONFIG, eos_token_id=[2, 426]))
    got = tokens({"generation_config.json": {"eos_token_id": [2, 426]}})
    tap.ok(got == want and got[2] == "eos" and got[0] == [2, 426],
           "generation_config.json's eos list ends a text: %s after %d" % (got[2], len(got[3])))
    got = tokens({"generation_config.json": {"eos_token_id": 7, "bos_token_id": 5}},
                 dict(CONFIG, eos_token_id=[2, 426], bos_token_id=1))
    tap.ok(got[:2] == ([7], 5), "it replaces the config's, and bos, too")
    got = tokens({"generation_config.json": {"eos_token_id": None, "temperature": 0.6}},
                 dict(CONFIG, eos_token_id=[2, 426]))
    tap.ok(got[0] == [2, 426], "what it lacks stays")


TOKENIZER_CONFIG = {
    "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "model_max_length": 1e30,
    "eos_token": {"content": "</s>", "lstrip": False, "__type": "AddedToken"},
    "chat_template": [{"name": "default", "template": "D {{ x }}"},
                      {"name": "tool_use", "template": "T"}]}


def test_templates(folder):
    path, p = convert(folder, {"tokenizer_config.json": TOKENIZER_CONFIG})
    tap.ok(p.returncode == 0 and chat_of(path) == {
        "template": "D {{ x }}", "templates": {"tool_use": "T"}, "bos_token": "<s>",
        "eos_token": "</s>", "add_bos_token": True, "add_eos_token": False},
        "a list of templates, tokens and flags of tokenizer_config.json")
    shown = run(INSPECT, path).stdout
    tap.ok("chat template" in shown and "tool_use" in shown and "</s>" in shown,
           "vflow-inspect shows it")
    p = run(COORDINATOR, "generate", "--model", path, "-p", "Once", "-n", "4")
    tap.ok(p.returncode == 0 and not p.stderr, "and the model runs")
    text = "{% for m in messages %}\n\"\\\u00e4\U0001f600{% endfor %}\n"
    files = {"tokenizer_config.json": {"chat_template": "weak"}, "chat_template.jinja": text,
             "chat_template.json": {"chat_template": "weakest"}}
    path, p = convert(folder, files)
    tap.ok(p.returncode == 0 and chat_of(path) == {"template": text},
           "chat_template.jinja is before them, kept to the byte")
    del files["chat_template.jinja"]
    path, p = convert(folder, files)
    tap.ok(chat_of(path) == {"template": "weak"}, "then tokenizer_config.json")
    files["tokenizer_config.json"] = {"bos_token": None, "chat_template": None}
    path, p = convert(folder, files)
    tap.ok(chat_of(path) == {"template": "weakest"}, "then chat_template.json")
    plain, p = convert(folder, {"tokenizer_config.json": {}})
    tap.ok(chat_of(plain) is None, "a model without any has none")
    path, p = convert(folder, {"chat_template.jinja": text}, "--no-tokenizer")
    tap.ok(p.returncode == 0 and chat_of(path) is None, "nor has one without a tokenizer")


def test_gguf(folder):
    model = gguf.Model("llama")
    out = os.path.join(folder, "m.vflow")
    more = [("tokenizer.chat_template", gguf.STRING, "{{ x }}"),
            ("tokenizer.chat_template.rag", gguf.STRING, "R"),
            ("tokenizer.ggml.model", gguf.STRING, "no_vocab"),
            ("tokenizer.ggml.tokens", gguf.ARRAY, (gguf.STRING, ["<%d>" % i for i in range(80)])),
            ("tokenizer.ggml.bos_token_id", gguf.U32, 1),
            ("tokenizer.ggml.eos_token_id", gguf.U32, 2),
            ("tokenizer.ggml.add_bos_token", gguf.BOOL, True)]
    with open(os.path.join(folder, "m.gguf"), "wb") as file:
        file.write(gguf.build(model.metadata + more, model.tensors()).data)
    p = run(CONVERT, file.name, "-o", out)
    chat = chat_of(out) if p.returncode == 0 else None
    tap.ok(chat == {"template": "{{ x }}", "templates": {"rag": "R"}, "bos_token": "<1>",
                    "eos_token": "<2>", "add_bos_token": True},
           "templates of a GGUF file: %s %s" % (chat, p.stderr))
    more[0] = ("tokenizer.chat_template", gguf.U32, 7)
    with open(file.name, "wb") as file:
        file.write(gguf.build(model.metadata + more, model.tensors()).data)
    p = run(CONVERT, file.name, "-o", out)
    tap.ok(p.returncode == 3 and "tokenizer.chat_template" in p.stderr, p.stderr.strip())


def test_refused(folder):
    g, t = "generation_config.json", "tokenizer_config.json"
    for files, words in (
            ({g: "{"}, [g, "JSON"]), ({g: "[]"}, [g, "object"]),
            ({g: {"eos_token_id": "2"}}, [g, "eos_token_id"]),
            ({g: {"eos_token_id": [2, 512]}}, [g, "eos_token_id", "512"]),
            ({g: {"bos_token_id": -1}}, [g, "bos_token_id"]),
            ({g: '{"eos_token_id": NaN}'}, [g, "eos_token_id", "NaN"]),
            ({t: "{"}, [t, "JSON"]), ({t: "[3]"}, [t, "object"]),
            ({t: {"chat_template": 7}}, [t, "chat_template", "integer"]),
            ({t: {"chat_template": "a\0b"}}, [t, "chat_template", "NUL"]),
            ({t: {"chat_template": [{"name": "default"}]}}, [t, "template", "missing"]),
            ({t: {"chat_template": [3]}}, [t, "chat_template"]),
            ({t: {"bos_token": {"text": "<s>"}}}, [t, "bos_token", "content"]),
            ({t: {"add_bos_token": "yes"}}, [t, "add_bos_token"]),
            ({t: {"chat_template": "x" * ((1 << 20) + 1)}}, ["template", "1048576"]),
            ({"chat_template.jinja": b"\xff"}, ["chat_template.jinja", "UTF-8"]),
            ({"chat_template.jinja": "x" * ((1 << 20) + 1)}, ["chat_template.jinja", "1048576"]),
            ({"chat_template.json": {"chat_template": {}}}, ["chat_template.json", "an object"]),
            ({g: POINTER}, [g, "git lfs pull"]), ({t: POINTER}, [t, "git lfs pull"]),
            ({"chat_template.jinja": POINTER}, ["chat_template.jinja", "git lfs pull"])):
        path, p = convert(folder, files)
        tap.ok(p.returncode == 3 and p.stderr.count("\n") == 1 and not os.path.exists(path) and
               all(w in p.stderr for w in words), "refused: " + p.stderr.strip()[:300])
    for name in (g, t, "chat_template.jinja", "chat_template.json"):
        source = checkpoint(folder)
        os.symlink("../gone", os.path.join(source, name))
        p = run(CONVERT, source, "-o", os.path.join(folder, "x.vflow"))
        tap.ok(p.returncode == 3 and name in p.stderr and "../gone" in p.stderr,
               "a link that leads nowhere: " + p.stderr.strip())
    native = json.loads(open(os.path.join(tap.shared_dir(), "models", "tiny_arch2_4",
                                          "config.json")).read())
    path, p = convert(folder, config=dict(native, chat={"template": "x"}))
    tap.ok(p.returncode == 3 and "chat" in p.stderr,
           "a config.json has no chat: " + p.stderr.strip())


def test_broken_file(folder):
    """A model file whose chat isn't one, its checksums right."""
    good, p = convert(folder, {"chat_template.jinja": "hello"})
    with open(good, "rb") as file:
        whole = file.read()
    for old, new in ((b'"template":"hello"', b'"tempIate":"hello"'),
                     (b'"template":"hello"', b'"template":1234567')):
        data = bytearray(whole)
        offset, size = struct.unpack_from("<QQ", data, 64 + 8)
        section = bytes(data[offset:offset + size]).replace(old, new)
        data[offset:offset + size] = section
        struct.pack_into("<Q", data, 64 + 24, reader.xxh3(section))
        struct.pack_into("<Q", data, 504, reader.xxh3(bytes(data[:504])))
        with open(good, "wb") as file:
            file.write(data)
        p = run(INSPECT, good)
        tap.ok(section != whole[offset:offset + size] and p.returncode == 3 and
               good in p.stderr and p.stderr.count("\n") == 1, "refused: " + p.stderr.strip())


def test_not_finite(folder):
    text = json.dumps(dict(CONFIG, unused=[float("inf"), -float("inf"), float("nan")],
                           note='"NaN" \\ Infinity, [-Infinity], {"a": NaN}',
                           other={"x": float("nan")}))
    path, p = convert(folder, {"config.json": text})
    plain = reader.ModelFile(path).config if p.returncode == 0 else None
    tap.ok(plain and plain["hidden_size"] == CONFIG["hidden_size"],
           "keys that aren't used may be NaN or infinite " + p.stderr)
    text = json.dumps({"model_max_length": float("inf"), "bos_token": "Infinity",
                       "chat_template": 'a "NaN", \\" Infinity] \\\\'})
    path, p = convert(folder, {"tokenizer_config.json": text,
                               "generation_config.json": '{"x":NaN , "eos_token_id": 3}'})
    tap.ok(p.returncode == 0 and chat_of(path) ==
           {"bos_token": "Infinity", "template": 'a "NaN", \\" Infinity] \\\\'},
           "and texts aren't touched " + p.stderr)
    for key, value in (("rope_theta", "Infinity"), ("hidden_size", "NaN"), ("hidden_act", "NaN"),
                       ("rms_norm_eps", "-Infinity"), ("tie_word_embeddings", "NaN"),
                       ("eos_token_id", "Infinity"), ("model_type", "Infinity")):
        text = json.dumps(dict(CONFIG, **{key: "@"})).replace('"@"', value)
        path, p = convert(folder, {"config.json": text})
        tap.ok(p.returncode == 3 and key in p.stderr and value in p.stderr and
               "config.json" in p.stderr, "refused: " + p.stderr.strip())
    good = json.dumps(CONFIG)[:-1]
    for end in (', "a": Nan}', ', "a": NaNa}', ', NaN: 1}', ', "a": -NaN}', ', "a": 1NaN}',
                ', "a": Infinity 1}', ', "a": + Infinity}', ', NaN}', ', "a": NaN',
                ', "a": - Infinity}'):
        path, p = convert(folder, {"config.json": good + end})
        tap.ok(p.returncode == 3 and "JSON" in p.stderr, "%s: %s" % (end, p.stderr.strip()))


def main():
    for test in (test_generation, test_templates, test_gguf, test_refused, test_broken_file,
                 test_not_finite):
        with tempfile.TemporaryDirectory() as folder:
            test(folder)
    tap.done()


main()
