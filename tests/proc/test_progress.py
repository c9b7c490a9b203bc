"""Progress bars as a terminal shows them: a pseudo-terminal is read and its screen kept, so that what
stands on it at any moment, and at the end, can be looked at. In a pipe there is nothing."""
import fcntl
import os
import re
import select
import struct
import sys
import termios
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from processes import CONVERT, COORDINATOR, HOME, environment, run
from tap import done, note, ok, program, source_dir

CHECKPOINT = os.path.join(source_dir(), "models", "tiny_arch2_4")
MODEL = os.path.join(HOME, "tiny.vflow")
SLOW = ["--kernel", "scalar", "-t", "1", "--prefill-chunk", "8"]
TEXT = "Once upon a time there was a little dog. " * 25
BAR = re.compile(r"(prefill|scoring|loading|convert|verify) .*\d+%")


class Screen:
    """Lines of a terminal that knows \\r, \\n and erase-to-the-end-of-line, and no wrapping."""

    def __init__(self):
        self.lines, self.row, self.col = [""], 0, 0

    def put(self, data):
        for piece in re.findall(r"\x1b\[K|\x1b.|[\r\n]|[^\x1b\r\n]+", data):
            line = self.lines[self.row]
            if piece == "\r":
                self.col = 0
            elif piece == "\n":
                self.row += 1
                self.col = 0
                if self.row == len(self.lines):
                    self.lines.append("")
            elif piece == "\x1b[K":
                self.lines[self.row] = line[:self.col]
            else:
                self.lines[self.row] = (line.ljust(self.col)[:self.col] + piece +
                                        line[self.col + len(piece):])
                self.col += len(piece)


def on_terminal(argv, columns, seconds=60):
    """(status, the screen at the end, every state of its last line)."""
    pid, fd = os.forkpty()
    if pid == 0:
        os.environ.update(environment())
        os.execv(argv[0], argv)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    screen, states, end = Screen(), [], time.monotonic() + seconds
    while time.monotonic() < end:
        if not select.select([fd], [], [], 1)[0]:
            continue
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        if not data:
            break
        for piece in re.split(r"(?=\r)", data.decode(errors="replace")):
            screen.put(piece)
            states.append(screen.lines[screen.row])
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), screen.lines, states


def check(what, argv, columns, bar, want):
    status, lines, states = on_terminal(argv, columns)
    bars = [s for s in states if s.startswith(bar + " ")]
    good = ok(status == 0 and bars, "%s, %d columns: a bar is drawn" % (what, columns))
    good &= ok(all(len(s) < columns for s in bars), "it fits the line")
    good &= ok(any("left" in s and "/s" in s for s in bars) or columns < 60,
               "it tells speed and the time that is left")
    text = "\n".join(lines)
    good &= ok(not BAR.search(text), "nothing of it stays on the screen")
    good &= ok(want in text, "the result stands on the screen whole")
    if not good:
        note("status %d\n%s\nbars: %s" % (status, text[-600:], bars[-2:]))


def test_terminal():
    prompt = os.path.join(HOME, "prompt.txt")
    with open(prompt, "w") as f:
        f.write(TEXT)
    generate = [COORDINATOR, "generate", "-m", MODEL, *SLOW, "--prompt-file", prompt, "-n", "12"]
    score = [COORDINATOR, "score", "-m", MODEL, *SLOW, "--file", prompt]
    for argv, bar in ((generate, "prefill"), (score, "scoring")):
        piped = run(argv, check=True)
        ok(piped.stderr == b"", bar + " in a pipe: nothing")
        want = piped.stdout.decode().strip().splitlines()[-1]
        for columns in (80, 20):
            check(bar, argv, columns, bar, want)


def test_interrupted():
    """A sentence of failure has a line of its own."""
    status, lines, states = on_terminal(
        [COORDINATOR, "score", "-m", MODEL, *SLOW, "--file", os.path.join(HOME, "prompt.txt"),
         "--logits", os.path.join(HOME, "none", "x.npy")], 80)
    ok(status == 1 and any(line.startswith("vflow-coordinator score: ") for line in lines) and
       not BAR.search("\n".join(lines)), "a failure stands alone") or note("\n".join(lines))


run([CONVERT, CHECKPOINT, "-o", MODEL], check=True)
ok(program("vflow-coordinator") == COORDINATOR, "the programs are there")
test_terminal()
test_interrupted()
done()
