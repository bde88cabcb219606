"""Samples of a Python stack, as py-spy prints them: which activity of a training each one shows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from gflow.diagnosis.log_text import Frame
from gflow.diagnosis.slow_runs.run_facts import StackUse


class Activity(NamedTuple):
    """Frames that show an activity. A row with `code` judges the innermost frame alone, outside of PyTorch: a
    function in C has no frame of its own, so the line that calls it is the innermost one."""

    name: str
    # Parts of a file's path, and names of functions; none: all.
    files: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    # Regular expressions for the source of the line.
    code: tuple[str, ...] = ()


# An activity that everything below its frames belongs to. The first row that any frame shows counts.
CONTEXTS = (
    Activity("workers", ("torch/utils/data/dataloader.py",), ("_try_get_data", "_get_data")),
    Activity("workers", ("torch/utils/data/_utils/pin_memory.py",)),
    Activity("loading", ("torch/utils/data/_utils/", "torch/utils/data/dataset.py", "torch/utils/data/sampler.py")),
    Activity("loading", ("torch/utils/data/dataloader.py",)),
    Activity("loading", ("torchvision/transforms/", "torchvision/datasets/", "albumentations/", "/PIL/",
                         "webdataset/", "datasets/arrow_dataset.py", "datasets/iterable_dataset.py",
                         "datasets/formatting/", "torchaudio/", "tensorflow/python/data/")),
    Activity("importing", ("<frozen importlib",)),
    Activity("compiling", ("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py", "triton/compiler/",
                           "jax/_src/compiler.py")),
    Activity("saving", ("torch/serialization.py", "safetensors/", "torch/distributed/checkpoint/"),
             ("save", "_save", "save_file", "async_save", "_legacy_save")),
    Activity("communication", ("torch/distributed/distributed_c10d.py", "torch/distributed/_functional_col",
                               "deepspeed/comm/", "horovod/", "mpi4py/")),
    Activity("data-parallel", ("torch/nn/parallel/data_parallel.py", "torch/nn/parallel/replicate.py",
                               "torch/nn/parallel/scatter_gather.py", "torch/nn/parallel/parallel_apply.py")),
    Activity("network", ("urllib3/", "/ssl.py", "/http/client.py", "botocore/")),
)  # fmt: skip
# Otherwise the innermost frame that shows one of these.
ACTIVITIES = (
    Activity("sync", ("torch/cuda/__init__.py", "torch/cuda/streams.py"), ("synchronize",)),
    Activity("sync", ("torch/_tensor_str.py",)),
    Activity("sync", ("torch/_tensor.py",), ("__format__", "__repr__")),
    Activity("communication", code=(r"\b(?:all_reduce|all_gather\w*|reduce_scatter\w*|all_to_all\w*|barrier)\(",)),
    Activity("sync", code=(r"\.item\(\)", r"\.tolist\(\)", r"\.cpu\(\)", r"\.numpy\(\)", r"\bsynchronize\(",
                           r"\.nonzero\(", r"\bfloat\(\w*loss", r"\.block_until_ready\(")),
    Activity("copies", code=(r"\.to\(", r"\.cuda\(", r"\.pin_memory\(", r"\.copy_\(", r"\bdevice_put\(")),
    Activity("loading", code=(r"\bnp\.load\(", r"\bimread\(", r"\bImage\.open\(", r"\bread_\w+\(", r"\bloads?\(",
                              r"\bfrom_numpy\(")),
    Activity("sleeping", code=(r"\bsleep\(",)),
    Activity("subprocess", ("/subprocess.py",), ("wait", "_wait", "_try_wait", "communicate", "_communicate")),
    Activity("subprocess", ("multiprocessing/popen_", "multiprocessing/connection.py"), ("poll", "wait")),
    Activity("waiting", ("/threading.py", "/queue.py", "/selectors.py"),
             ("wait", "get", "select", "join", "acquire", "_wait_for_tstate_lock")),
    Activity("backward", ("torch/autograd/",)),
    Activity("optimizer", ("torch/optim/",)),
    Activity("forward", ("torch/nn/", "torch/_ops.py", "torch/amp/", "torch/_functorch/", "torch/_inductor/",
                         "torch/_dynamo/", "torch/fx/")),
)  # fmt: skip
# Frames of libraries: the line of the program that is shown lies outside of them.
LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen", "<string>")
_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>.*?)(?::(?P<line>\d+))?\)$")


class Sampled(NamedTuple):
    """One stack, the outermost frame first, and how often it was seen. The frames have no source yet."""

    thread: str
    frames: tuple[Frame, ...]
    times: int


def parse_raw(text: str) -> list[Sampled]:
    """Read the output of `py-spy record --format raw --threads --full-filenames`."""
    found = []
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        thread, *frames = stack.split(";")
        if count.isdecimal() and frames:
            found.append(
                Sampled(thread.partition(": ")[2].strip('"'), tuple(map(_frame, frames)), int(count))
            )
    return found


def _frame(text: str) -> Frame:
    match = _FRAME.match(text)
    if match is None:
        return Frame("", 0, text, "")
    return Frame(match["file"], int(match["line"] or 0), match["function"], "")


def summarize(samples: Iterable[Sampled], source: Callable[[str, int], str]) -> StackUse:
    """Shares of the activities of the main thread. `source`: returns a line of a file, or an empty text."""
    chosen = [one for one in samples if one.thread == "MainThread"] or list(samples)
    total = sum(one.times for one in chosen)
    counts = Counter[str]()
    places: dict[str, Counter[Frame]] = {}
    for one in chosen:
        frames = [frame._replace(code=source(frame.file, frame.line)) for frame in one.frames]
        activity = activity_of(frames)
        counts[activity] += one.times
        places.setdefault(activity, Counter())[_own_frame(frames)] += one.times
    return StackUse(
        total,
        {name: count / total for name, count in counts.items()},
        {name: place.most_common(1)[0][0] for name, place in places.items()},
    )


def activity_of(frames: list[Frame]) -> str:
    """The activity of one stack, the outermost frame first; `program` if no row applies."""
    for row in CONTEXTS:
        if any(_shows(row, frame) for frame in frames):
            return row.name
    for frame in reversed(frames):
        for row in ACTIVITIES:
            if (not row.code or frame is frames[-1]) and _shows(row, frame):
                return row.name
    return "program"


def _shows(row: Activity, frame: Frame) -> bool:
    if row.files and not any(part in frame.file for part in row.files):
        return False
    if row.functions and frame.function.rpartition(".")[2] not in row.functions:
        return False
    if row.code and "/torch/" in frame.file:
        return False
    return not row.code or any(re.search(pattern, frame.code) for pattern in row.code)


def _own_frame(frames: list[Frame]) -> Frame:
    """The innermost frame of the user's own code; the innermost of all, if there is none."""
    own = [frame for frame in frames if not any(part in frame.file for part in LIBRARIES)]
    return (own or frames)[-1]
