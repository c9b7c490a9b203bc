"""Files that are whole or not there."""

import os


def replace(path, data):
    """Writes a file beside path and renames it: a reader of path sees the old or the new whole."""
    write_new(path, lambda f: f.write(data))


def write_new(path, write):
    """As replace(); write(file) brings the data."""
    new = path + ".new"
    with open(new, "wb") as f:
        write(f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(new, path)
