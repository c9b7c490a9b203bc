"""What is counted for a stage worker and what it uses, for every golden model (step_memory.c)."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import tap
from processes import CONVERT, HOME, run


def main():
    golden = os.path.join(tap.small_data_dir(), "golden")
    models = []
    for name in sorted(os.listdir(golden)):
        path = os.path.join(HOME, name + ".vflow")
        run([CONVERT, os.path.join(golden, name), "-o", path], check=True)
        models.append(path)
    sys.exit(subprocess.run([sys.argv[1], *models]).returncode)


if __name__ == "__main__":
    main()
