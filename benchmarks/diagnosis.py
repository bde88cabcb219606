"""Score `gjob why` on the corpus of failed jobs beside the three texts that gflow in Rust looks for.

    python -m benchmarks.diagnosis
    python -m benchmarks.diagnosis --speed     how long gjob why takes, with a small log and one of 2 GB

Both halves of `tests/corpus/failure_logs`: `known`, on which the rules were written, and `scored`, which only
scores them; no text of either is printed. right: the cause that a person finds is named first. wrong: another
one is. unknown: none is named; where a person finds none either, that is right.

gflow's `triage_job` searches the last 80 lines, at most 20,000 bytes, for "out of memory" or "cuda oom", "no
space left", and "command not found". The first hint counts for GPU memory and for host memory.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gflow.diagnosis.diagnose import diagnose
from gflow.diagnosis.rules.rule import Confidence
from tests.failure_corpus import Tail, read_corpus

LINES, BYTES = 80, 20_000
UNKNOWN = "unknown"
# Texts in lower case, and the causes for which the hint is right.
PATTERNS = (
    (("out of memory", "cuda oom"), ("cuda-oom", "host-oom")),
    (("no space left",), ("disk-full",)),
    (("command not found",), ("command-not-found",)),
)


def name_by_rules(tail: Tail) -> tuple[str, bool]:
    """The cause that gflow names first, and whether it calls it certain."""
    found = diagnose(tail.facts, tail.text).findings
    return (found[0].cause, found[0].confidence is Confidence.CERTAIN) if found else (UNKNOWN, False)


def name_by_patterns(tail: Tail) -> tuple[str, bool]:
    """The cause by the three patterns. A hint that covers the true cause counts as that cause."""
    text = "\n".join(tail.text.splitlines()[-LINES:])[-BYTES:].lower()
    hits = [causes for texts, causes in PATTERNS if any(one in text for one in texts)]
    if not hits:
        return UNKNOWN, False
    return (tail.cause if tail.cause in hits[0] else hits[0][0]), True


def score(tails: list[Tail], name: Callable[[Tail], tuple[str, bool]]) -> tuple[int, int, int, int]:
    """How many are right, wrong and unknown, and how many are wrong although they are called certain."""
    right = wrong = unknown = sure = 0
    for tail in tails:
        cause, is_certain = name(tail)
        right += cause == tail.cause
        unknown += cause == UNKNOWN != tail.cause
        wrong += cause not in (UNKNOWN, tail.cause)
        sure += cause not in (UNKNOWN, tail.cause) and is_certain
    return right, wrong, unknown, sure


def print_scores() -> None:
    print(f"{'half':8}{'logs':>6}  {'named by':16}{'right':>12}{'wrong':>8}{'unknown':>9}{'wrong and certain':>19}")
    for half in ("known", "scored"):
        tails = read_corpus(half)
        for who, name in (("gjob why", name_by_rules), ("three patterns", name_by_patterns)):
            right, wrong, unknown, sure = score(tails, name)
            share = f"{right} ({right / len(tails):.1%})"
            certain = "-" if name is name_by_patterns else sure  # its hints have no degrees
            print(f"{half:8}{len(tails):>6}  {who:16}{share:>12}{wrong:>8}{unknown:>9}{certain:>19}")


# ------------------------------------------------------------ speed

RUNS = 30
SMALL, LARGE = 10 << 10, 2 << 30
LINE = b"step 1200: loss 0.3171, lr 0.0001, 1201 samples/s, grad norm 0.93, 41 % of epoch 3\n"
END = b"""Traceback (most recent call last):
  File "train.py", line 3, in <module>
    import einops
ModuleNotFoundError: No module named 'einops'
"""


def make_prose(size: int) -> bytes:
    """Lines of so many bytes, no two of one kind, as a verbose program writes them."""
    dice = random.Random(23)
    words = ["".join(dice.choices(string.ascii_lowercase, k=dice.randint(2, 9))) for _ in range(3000)]
    lines = (" ".join(dice.choices(words, k=14)) for _ in range(size // 80))
    return "\n".join(lines).encode()[:size] + b"\n"


def write_log(path: Path, size: int, tail: bytes) -> None:
    """A log of this size that ends with `tail` and the error, after a hole."""
    tail = tail[-min(size, 300 << 10) :] + END
    with open(path, "wb") as file:
        file.seek(max(0, size - len(tail)))
        file.write(tail)


def time_command(words: list[str], env: dict[str, str]) -> tuple[float, float, float]:
    """Least and median wall time, and least CPU time, in ms."""
    walls, cpus = [], []
    for _ in range(RUNS):
        begun = time.perf_counter()
        process = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL)
        _, _, used = os.wait4(process.pid, 0)
        walls.append((time.perf_counter() - begun) * 1000)
        cpus.append((used.ru_utime + used.ru_stime) * 1000)
    return min(walls), statistics.median(walls), min(cpus)


def print_speed() -> None:
    """`gjob why` beside commands that do less. The commands are those next to this Python."""
    bin = Path(sys.executable).parent
    with tempfile.TemporaryDirectory(prefix="gflow-why-") as home:
        env = {"HOME": home, "PATH": f"{bin}:/usr/bin:/bin"}

        def run(*words: str) -> str:
            done = subprocess.run([bin / words[0], *words[1:]], env=env, capture_output=True, text=True)
            return done.stdout

        run("gflowd", "up", "--simulate-gpus", "1x80G")
        try:
            job = run("gbatch", "--gpus", "1", "--parsable", "false").strip()
            run("gjob", "wait", job)
            log = Path(home, ".local/share/gflow/logs", f"{job}.log")
            why = [str(bin / "gjob"), "why", job]
            print(f"{'':24}{'least ms':>9}{'median':>9}{'CPU':>7}")
            progress, prose = LINE * 4000, make_prose(300 << 10)
            rows = [("python -c pass", [sys.executable, "-c", "pass"], 0, b"")]
            rows += [("gqueue", [str(bin / "gqueue")], 0, b"")]
            rows += [("gjob why, log of 10 KB", why, SMALL, progress)]
            rows += [("gjob why, log of 2 GB", why, LARGE, progress)]
            rows += [("gjob why, 2 GB of prose", why, LARGE, prose)]
            for name, words, size, tail in rows:
                write_log(log, size, tail)
                least, median, cpu = time_command(words, env)
                print(f"{name:24}{least:>9.0f}{median:>9.0f}{cpu:>7.0f}")
        finally:
            run("gflowd", "down")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--speed", action="store_true")
    print_speed() if parser.parse_args().speed else print_scores()


if __name__ == "__main__":
    main()
