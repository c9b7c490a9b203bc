"""What tidy.py holds the source against: limits, words, and the few exceptions with their reasons."""

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60

# May be longer, up to so many lines.
LONG_FILES = {
    "common/format/gguf.c": 840,  # one format, read in one pass over one cursor
    "common/format/model_writer.c": 690,  # one file, written front to back
    "convert/gguf_tokenizer.c": 680,  # every kind of GGUF vocabulary to one JSON
    "coordinator/engine/control.c": 680,  # every message of a run's control socket
    "coordinator/scheduler.c": 660,  # a sequence from its arrival to its end
    "tests/io/test_cache.c": 640,  # one table, from all sides
}
LONG_FUNCTIONS = {  # tables of options, mostly
    ("coordinator/plan/plan.c", "parse_arguments"): 140,
    ("convert/convert_main.c", "main"): 95,
    ("tests/stage/test_mailbox.c", "main"): 70,
}

# Bodies of code that a tier includes with its own vector type; no headers by themselves.
BODIES = ("common/kernels/lanes_",)

# Folders beside which nothing is a role: roles don't include each other, and nothing here includes a
# role, except for bench, which measures them all.
SHARED = ("common", "proto")
MEASURES = ("bench", "tests")

# A word belongs to the rooms behind it: folders, with what is below them. It is looked for in code and
# strings, as a whole word or a part of a snake_case name.
WORDS = {
    "hwloc": ("common/machine",),
    "uring": ("io_worker", "coordinator/engine", "bench"),
    "zmq": ("common/run", "stage_worker", "io_worker", "coordinator", "client"),
    "pcre2": ("common/tokenizer",),
    "utf8proc": ("common/tokenizer",),
    "mm256": ("common/kernels", "bench/compute"),
    "mm512": ("common/kernels", "bench/compute"),
    "mailbox": ("common/run", "stage_worker", "coordinator/engine", "bench"),
    "safetensors": ("common/format", "convert", "bench"),
    "gguf": ("common/format", "convert", "bench"),
    "tokenizer": ("common/tokenizer", "common/format", "convert", "coordinator", "client", "bench"),
    "vocab": ("common/tokenizer", "common/model", "common/format", "convert", "coordinator",
              "stage_worker", "bench", "client"),
    "layer": ("common/model", "common/format", "common/experts", "common/run", "common/settings",
              "convert", "coordinator", "stage_worker", "io_worker", "bench"),
    "expert": ("common/model", "common/format", "common/experts", "common/run", "common/settings",
               "convert", "coordinator", "stage_worker", "io_worker", "client", "bench"),
    "sampler": ("coordinator",),
    "attention": ("common/model", "common/kernels", "common/format", "convert", "coordinator",
                  "stage_worker", "bench"),
}
