"""The rules that keep the house in order, each a function from a tree {path: text} to its faults.

A fault is a line "path:line: what is wrong". The rooms and who may see whom are read off the
CMakeLists: a folder with a library is a room, and its files include what the library links.
"""
import concurrent.futures
import os
import re
import subprocess

import rooms

TOPS = ("common", "proto", "coordinator", "stage_worker", "io_worker", "client", "convert", "bench",
        "tests", "docs", "deploy", "CMakeLists.txt", "CMakePresets.json", "README.md")
TEXT = (".c", ".h", ".py", ".md", ".txt", ".json", ".proto", ".js")


def load(root):
    """{path: text} of the source's files, without data."""
    tree = {}
    for top in TOPS:
        start = os.path.join(root, top)
        paths = [start] if os.path.isfile(start) else [
            os.path.join(folder, name) for folder, folders, names in os.walk(start)
            if not folder.startswith(os.path.join(root, "tests", "golden")) for name in names]
        for path in paths:
            if path.endswith(TEXT) and not path.endswith("variants.json"):
                with open(path, encoding="utf-8") as file:
                    tree[os.path.relpath(path, root)] = file.read()
    return tree


def c_files(tree, suffixes=(".c", ".h")):
    return sorted(p for p in tree if p.endswith(suffixes))


def line_of(text, at):
    return text.count("\n", 0, at) + 1


# ---- the link graph ----------------------------------------------------------------------------


class Links:
    """Targets of all CMakeLists: their folder, their sources, what they link."""

    def __init__(self, tree):
        self.folder, self.links, self.owner = {}, {}, {}
        for path, text in tree.items():
            if path.endswith("CMakeLists.txt") and not path.startswith("tests"):
                self._read(os.path.dirname(path), re.sub(r"#.*", "", text))

    def _read(self, folder, text):
        for name, rest in re.findall(r"add_(?:library|executable)\(([\w-]+)\s([^)]*)\)", text):
            self.folder[name] = folder
            for word in rest.split():
                if word.endswith(".c"):
                    self.owner[os.path.normpath(os.path.join(folder, word))] = name
        for name, rest in re.findall(r"target_link_libraries\(([\w-]+)\s([^)]*)\)", text):
            self.links.setdefault(name, set()).update(w for w in rest.split() if w.startswith("vf_"))

    def rooms(self):
        return set(self.folder.values())

    def room_of(self, path):
        """The innermost folder with a target that path lies in."""
        folder, rooms_here = os.path.dirname(path), self.rooms()
        while folder and folder not in rooms_here:
            folder = os.path.dirname(folder)
        return folder

    def below(self, target, seen=None):
        """target and all that it links, directly or not."""
        seen = set() if seen is None else seen
        if target not in seen:
            seen.add(target)
            for other in self.links.get(target, ()):
                self.below(other, seen)
        return seen

    def visible(self, path):
        """Rooms that a file may include: those of its target; a header's, of all of its room's."""
        room = self.room_of(path)
        targets = [self.owner[path]] if path in self.owner else [
            t for t, folder in self.folder.items() if folder == room]
        linked = set().union(*(self.below(t) for t in targets)) if targets else set()
        return {self.folder[t] for t in linked if t in self.folder} | {room}


def top_of(path):
    return path.split("/")[0]


def is_role(top):
    return top not in rooms.SHARED + rooms.MEASURES


def arrows(tree):
    faults, links = [], Links(tree)
    for path in c_files(tree):
        if top_of(path) == "tests":
            continue
        visible = links.visible(path)
        for m in re.finditer(r'^#include "([^"]+)"', tree[path], re.M):
            where = "%s:%d: includes %s" % (path, line_of(tree[path], m.start()), m.group(1))
            other = m.group(1)
            if "/" not in other:
                continue  # generated
            if other not in tree:
                faults.append(where + ", which isn't there")
            elif is_role(top_of(other)) and top_of(other) != top_of(path) \
                    and top_of(path) not in rooms.MEASURES:
                faults.append(where + ", another role's")
            elif links.room_of(other) not in visible:
                faults.append("%s, but the library of %s doesn't link %s" % (
                    where, links.room_of(path), links.room_of(other)))
    return faults + circles(links)


def circles(links):
    return ["%s: %s links itself through %s" % (links.folder[t], t, other)
            for t in links.folder for other in links.links.get(t, ())
            if t in links.below(other)]


# ---- lengths -----------------------------------------------------------------------------------


def file_length(tree):
    faults = []
    for path in c_files(tree, (".c", ".h", ".py")):
        lines, most = tree[path].count("\n"), rooms.LONG_FILES.get(path, rooms.FILE_LINES_MAX)
        if lines > most:
            faults.append("%s:%d: a file of %d lines, at most %d" % (path, most, lines, most))
    return faults


def functions(text):
    """(line, name, lines inside the braces) of every function: braces in column 0."""
    lines, start = text.split("\n"), None
    for i, line in enumerate(lines):
        if line == "{":
            start = i
        elif line == "}" and start is not None:
            head = "\n".join(lines[max(0, start - 8):start])
            names = re.findall(r"^[a-z][^;{}#/]*?\b(\w+)\(", head, re.M)
            yield start + 1, names[-1] if names else "?", i - start - 1
            start = None


def function_length(tree):
    faults = []
    for path in c_files(tree):
        for line, name, count in functions(tree[path]):
            most = rooms.LONG_FUNCTIONS.get((path, name), rooms.FUNCTION_LINES_MAX)
            if count > most:
                faults.append("%s:%d: %s has %d lines, at most %d" % (path, line, name, count, most))
    return faults


# ---- words and idioms --------------------------------------------------------------------------


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)


def foreign_words(tree):
    faults = []
    patterns = {w: re.compile(r"(?<![a-z0-9])%ss?(?![a-z])" % w, re.I) for w in rooms.WORDS}
    for path in c_files(tree):
        if top_of(path) in ("tests", "proto"):
            continue
        code = None
        for word, homes in rooms.WORDS.items():
            if any(path.startswith(home + "/") for home in homes):
                continue
            if word not in tree[path].lower():
                continue
            code = without_comments(tree[path]) if code is None else code
            m = patterns[word].search(code)
            if m:
                faults.append("%s:%d: \"%s\" is a word of %s" % (
                    path, line_of(code, m.start()), m.group(0), ", ".join(homes)))
    return faults


def code_idiom(tree):
    """A code is an enum vf_code, and one file asks for success in one way: with VF_OK, or without."""
    faults = []
    names = set()
    for path in c_files(tree):
        if top_of(path) != "tests":
            names.update(re.findall(r"^(?:static )?enum vf_code (vf_\w+)\(", tree[path], re.M))
    kept = re.compile(r"\b(?:int|bool|unsigned) (\w+) = (%s)\([^;]*?\);" % "|".join(sorted(names)), re.S)
    for path in c_files(tree, (".c",)):
        if top_of(path) == "tests":
            continue
        text = tree[path]
        for m in kept.finditer(text):
            if "==" not in m.group(0) and "!=" not in m.group(0):
                faults.append("%s:%d: %s keeps a code and isn't an enum vf_code" % (
                    path, line_of(text, m.start()), m.group(1)))
        named = re.search(r"(?<![.>])\bcode [!=]= VF_OK\b", text)
        bare = re.search(r"\b(?:if|while) \(!?code\)|!code &&|&& !code\b", text)
        if named and bare:
            faults.append("%s:%d: a code compared with VF_OK here, and not in line %d" % (
                path, line_of(text, named.start()), line_of(text, bare.start())))
    return faults


# ---- headers and paths -------------------------------------------------------------------------


def header_guards(tree):
    faults = []
    for path in c_files(tree, (".h",)):
        want = "VF_" + re.sub(r"\W", "_", path).upper()
        found = re.search(r"^#ifndef (\w+)\n#define \1$", tree[path], re.M)
        if not found or found.group(1) != want:
            faults.append("%s:1: its guard is %s, %s expected" % (
                path, found.group(1) if found else "missing", want))
    return faults


def machine_paths(tree):
    pattern = re.compile(r"(?<![\w./$}-])/(?:home|root|Users|work)/\w")
    return ["%s:%d: a path of one machine" % (path, line_of(text, m.start()))
            for path, text in sorted(tree.items()) for m in pattern.finditer(text)
            if not path.startswith("tests/tidy/")]


def compile_flags(root, generated):
    with open(os.path.join(root, "CMakeLists.txt")) as file:
        packages = re.findall(r"pkg_check_modules\(.*IMPORTED_TARGET ([\w.-]+)[^)]*\)", file.read())
    flags = subprocess.run(["pkg-config", "--cflags", *packages], capture_output=True, text=True,
                           check=True).stdout.split()
    return flags + ["-I" + root, "-I" + generated, "-D_GNU_SOURCE", "-std=gnu11"]


def public_headers(tree):
    return [p for p in c_files(tree, (".h",))
            if top_of(p) != "tests" and not p.startswith(rooms.BODIES)]


def self_sufficient(root, headers, flags):
    """Headers that don't compile alone. Needs files: root's."""
    def check(path):
        p = subprocess.run(["cc", "-fsyntax-only", "-x", "c", *flags, os.path.join(root, path)],
                           capture_output=True, text=True)
        first = [line for line in p.stderr.split("\n") if "error" in line]
        return None if p.returncode == 0 else "%s:1: doesn't compile alone: %s" % (
            path, first[0] if first else p.stderr[:200])
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [fault for fault in pool.map(check, headers) if fault]


def unformatted(root, paths):
    """Lines that clang-format would change. Needs files: root's."""
    def check(part):
        p = subprocess.run(["clang-format", "--dry-run", *part], cwd=root, capture_output=True,
                           text=True)
        return re.findall(r"^(\S+?:\d+):\d+: warning: code should be clang-formatted", p.stderr, re.M)
    parts = [paths[i::4] for i in range(4) if paths[i::4]]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [place for places in pool.map(check, parts) for place in places]
    return ["%s: not as clang-format has it" % place for place in dict.fromkeys(found)]


RULES = (arrows, file_length, function_length, foreign_words, code_idiom, header_guards,
         machine_paths)
