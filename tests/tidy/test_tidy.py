"""The source against the rules of tidy.py, and the rules against violations planted into a copy.

    test_tidy.py source | headers BUILD | format
"""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "support")]
import rooms
import tap
import tidy

ROOT = tap.source_dir()
LONG = "\n".join("    x += %d;" % i for i in range(rooms.FUNCTION_LINES_MAX + 1))


def report(faults, text):
    if not tap.ok(not faults, text):
        for fault in faults:
            tap.note(fault)


def appended(path, text):
    return lambda tree: tree.__setitem__(path, tree[path] + text)


def replaced(path, old, new):
    def plant(tree):
        assert old in tree[path], (path, old)
        tree[path] = tree[path].replace(old, new, 1)
    return plant


# (rule, what is planted, how, the words of the fault)
PLANTED = [
    (tidy.arrows, "common/ that includes a role",
     appended("common/base/log.c", '\n#include "stage_worker/pool.h"\n'),
     ("common/base/log.c:", "stage_worker/pool.h", "another role's")),
    (tidy.arrows, "a role that includes a role",
     appended("io_worker/orders.c", '\n#include "stage_worker/pool.h"\n'),
     ("io_worker/orders.c:", "stage_worker/pool.h", "another role's")),
    (tidy.arrows, "a room that includes one it doesn't link",
     appended("common/base/log.c", '\n#include "common/model/config.h"\n'),
     ("common/base/log.c:", "common/model/config.h", "doesn't link common/model")),
    (tidy.arrows, "a header of the kind",
     appended("common/tile/tile.h", '\n#include "common/format/model_file.h"\n'),
     ("common/tile/tile.h:", "doesn't link common/format")),
    (tidy.arrows, "an include of nothing",
     appended("common/base/log.c", '\n#include "common/base/no_such.h"\n'),
     ("common/base/log.c:", "no_such.h", "isn't there")),
    (tidy.arrows, "a link that makes a circle",
     appended("common/base/CMakeLists.txt", "\ntarget_link_libraries(vf_base PUBLIC vf_format)\n"),
     ("common/base: vf_base links itself", "vf_format")),
    (tidy.file_length, "a file that is too long",
     appended("common/base/log.c", "/* */\n" * rooms.FILE_LINES_MAX),
     ("common/base/log.c:", "a file of")),
    (tidy.function_length, "a function that is too long",
     appended("common/base/log.c", "\nstatic void planted(int x)\n{\n%s\n}\n" % LONG),
     ("common/base/log.c:", "planted has 61 lines")),
    (tidy.foreign_words, "a word of another room in a name",
     appended("common/base/log.c", "\nstatic int expert_count;\n"),
     ("common/base/log.c:", '"expert"')),
    (tidy.foreign_words, "one in a string",
     appended("common/machine/cgroup.c", '\nstatic const char *planted = "the tokenizer";\n'),
     ("common/machine/cgroup.c:", '"tokenizer"')),
    (tidy.foreign_words, "a library's call outside its room",
     appended("common/model/config.c", "\nvoid *planted = zmq_ctx_new;\n"),
     ("common/model/config.c:", '"zmq"')),
    (tidy.code_idiom, "a code kept in an int",
     appended("client/main.c", "\nvoid planted(void)\n{\n    int rc = vf_fault_init(NULL);\n}\n"),
     ("client/main.c:", "rc keeps a code")),
    (tidy.code_idiom, "two ways to ask for success",
     appended("common/base/fault.c", "\nint planted(int code)\n{\n    if (code)\n        return 1;\n"
              "    if (code == VF_OK)\n        return 2;\n}\n"),
     ("common/base/fault.c:", "a code compared with VF_OK")),
    (tidy.header_guards, "a guard of another path",
     replaced("common/base/log.h", "#ifndef VF_COMMON_BASE_LOG_H\n#define VF_COMMON_BASE_LOG_H",
              "#ifndef VF_LOG_H\n#define VF_LOG_H"),
     ("common/base/log.h:1:", "VF_LOG_H", "VF_COMMON_BASE_LOG_H expected")),
    (tidy.header_guards, "no guard",
     replaced("common/base/log.h", "#ifndef VF_COMMON_BASE_LOG_H", "#if 1"),
     ("common/base/log.h:1:", "missing")),
    (tidy.machine_paths, "a path of one machine",
     appended("docs/OPERATIONS.md", "\nSee %s.\n" % os.path.join("/home", "someone", "models")),
     ("docs/OPERATIONS.md:", "a path of one machine")),
]


def check_planted(tree):
    """Each planted fault is found, by the rule that is for it and with these words."""
    for rule, what, plant, words in PLANTED:
        before, copy = set(rule(tree)), dict(tree)
        plant(copy)
        found = [fault for fault in rule(copy) if fault not in before]
        good = any(all(word in fault for word in words) for fault in found)
        if not tap.ok(good, "%s: %s is found" % (rule.__name__, what)):
            tap.note("found: %s" % found)


def check_source():
    tree = tidy.load(ROOT)
    links = tidy.Links(tree)
    tap.ok(len(tree) > 300 and len(links.folder) > 20 and "common/base" in links.rooms(),
           "%d files, %d targets" % (len(tree), len(links.folder)))
    for rule in tidy.RULES:
        report(rule(tree), rule.__name__)
    check_planted(tree)


def check_headers(build):
    flags = tidy.compile_flags(ROOT, os.path.join(build, "proto"))
    headers = tidy.public_headers(tidy.load(ROOT))
    report(tidy.self_sufficient(ROOT, headers, flags), "%d headers compile alone" % len(headers))
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "planted.h"), "w") as file:
            file.write("static inline size_t planted(void)\n{\n    return 1;\n}\n")
        found = tidy.self_sufficient(folder, ["planted.h"], flags)
        tap.ok(len(found) == 1 and "planted.h:1: doesn't compile alone" in found[0],
               "a header that needs another is found")


def check_format():
    try:
        version = subprocess.run(["clang-format", "--version"], capture_output=True, text=True).stdout
    except FileNotFoundError:
        tap.skip_all("clang-format isn't installed")
    if " version 14." not in version:
        tap.skip_all("clang-format isn't version 14")
    report(tidy.unformatted(ROOT, tidy.c_files(tidy.load(ROOT))), "clang-format changes nothing")
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "planted.c"), "w") as file:
            file.write("int  planted( void );\n")
        with open(os.path.join(ROOT, ".clang-format")) as style, \
                open(os.path.join(folder, ".clang-format"), "w") as file:
            file.write(style.read())
        found = tidy.unformatted(folder, ["planted.c"])
        tap.ok(found == ["planted.c:1: not as clang-format has it"], "a badly set line is found")


if __name__ == "__main__":
    {"source": check_source, "headers": check_headers, "format": check_format}[sys.argv[1]](
        *sys.argv[2:])
    tap.done()
