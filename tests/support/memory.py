"""Memory control groups for tests: a group of one's own to run programs in, with its high-water mark.
Version 1 or 2, wherever this process may make one."""
import os
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = "/sys/fs/cgroup"


def _own_path(version):
    """The path of this process's group, as /proc/self/cgroup has it."""
    with open("/proc/self/cgroup") as f:
        for line in f:
            _, controllers, path = line.strip().split(":", 2)
            if (version == 1 and "memory" in controllers.split(",")) or \
                    (version == 2 and not controllers):
                return path.strip("/")
    return ""


def _parents():
    """(version, folder) under which a group might be made, the closest first."""
    for version, mount in ((1, os.path.join(ROOT, "memory")), (2, ROOT)):
        if os.path.isdir(mount):
            yield version, os.path.join(mount, _own_path(version))
            yield version, mount


class Group:
    """A memory group; use as a context manager. None of its processes outlives it."""

    def __init__(self, version, path):
        self.version, self.path = version, path

    def _file(self, v1, v2):
        return os.path.join(self.path, v1 if self.version == 1 else v2)

    def _read(self, v1, v2):
        with open(self._file(v1, v2)) as f:
            return f.read()

    def limit(self, size):
        with open(self._file("memory.limit_in_bytes", "memory.max"), "w") as f:
            f.write(str(size))

    def peak(self):
        return int(self._read("memory.max_usage_in_bytes", "memory.peak"))

    def killed(self):
        """Processes that the kernel killed because the limit was met."""
        words = self._read("memory.oom_control", "memory.events").split()
        return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0

    def pids(self):
        return [int(p) for p in self._read("cgroup.procs", "cgroup.procs").split()]

    def join(self):
        """For preexec_fn: the child belongs to the group from its first page on."""
        with open(os.path.join(self.path, "cgroup.procs"), "w") as f:
            f.write(str(os.getpid()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        deadline = time.monotonic() + 10
        while True:
            for pid in self.pids():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            try:
                return os.rmdir(self.path)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def make_group():
    """A new group, or None where this process can't make one that measures."""
    for version, parent in _parents():
        try:
            group = Group(version, tempfile.mkdtemp(prefix="vflow-test-", dir=parent))
        except OSError:
            continue
        try:
            group.peak()
            with open(os.path.join(group.path, "cgroup.procs"), "a"):
                return group
        except (OSError, ValueError):
            os.rmdir(group.path)
    return None


def drop_cache(path):
    """What the page cache has of a file, unless somebody has it mapped."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def can_unshare():
    """Whether a command can have file systems of its own."""
    if not shutil.which("unshare"):
        return False
    p = subprocess.run(with_tmpfs("/dev/shm", 1 << 20, ["true"]), capture_output=True)
    return p.returncode == 0


def with_tmpfs(path, size, argv):
    """argv, run with a file system of so many bytes at path."""
    script = 'mount -t tmpfs -o size=%d tmpfs "$0" && exec "$@"' % size
    return ["unshare", "-m", "sh", "-c", script, path, *argv]
