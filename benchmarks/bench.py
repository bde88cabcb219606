"""Run trials on systems, round by round, and write the figures.

    python3 -m benchmarks.bench [-s SYSTEMS] [-t TRIALS] [--rounds N] [--quick] [-o FILE] [key=value …]
    python3 -m benchmarks.bench --list
    python3 -m benchmarks.bench --table FILE

The speed of a shared machine changes within minutes, so the systems are interleaved: each round
runs every trial on every system before the next round begins, and each round begins with another
system. Samples of all rounds are joined.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import IO, Any

from benchmarks import hq, ours, runqd, slurm, spooler  # noqa: F401  (they register themselves)
from benchmarks.measure import NotOffered, Sample, Settings, describe_machine
from benchmarks.report import WHOLE, table
from benchmarks.systems import ROOT, SYSTEMS, System
from benchmarks.trials import TRIALS

# figures[system][trial][figure]
Figures = dict[str, dict[str, dict[str, Sample | str]]]


def main() -> int:
    args = arguments()
    if args.list:
        for name, system in SYSTEMS.items():
            print(f"system  {name:22}{(system.__doc__ or '').partition(chr(10))[0]}")
        for name, trial in TRIALS.items():
            print(f"trial   {name:22}{(trial.__doc__ or '').partition(chr(10))[0]}")
        return 0
    if args.table:
        print(table(json.loads(args.table.read_text())["results"]))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the systems are stopped
    lock = only_one()
    run = Run(args)
    try:
        run.all_rounds()
    finally:
        run.write()
        lock.close()
    print("\n" + table(run.results()))
    return 1 if run.failed else 0


def only_one() -> IO[str]:
    """Lock the folder: two runs in it would stop each other's daemons."""
    ROOT.mkdir(parents=True, exist_ok=True)
    lock = open(ROOT / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"benchmarks: another run works in {ROOT}")
    return lock


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/run", description="Side-by-side benchmark.")
    parser.add_argument("-s", dest="systems", default="ours,gflow-process,tsp", help="systems, with commas")
    parser.add_argument(
        "-t", dest="trials", default="cli,start,start_open,throughput,gap", help="trials, with commas"
    )
    parser.add_argument(
        "-o", dest="output", type=Path, default=Path(".bench/out.json"), help="file for the figures"
    )
    parser.add_argument("--rounds", type=int, help="turns of each system (default 3; 1 with --quick)")
    parser.add_argument("--quick", action="store_true", help="few samples: does everything work?")
    parser.add_argument("--list", action="store_true", help="show systems and trials")
    parser.add_argument("--table", type=Path, metavar="FILE", help="show figures of an earlier run")
    parser.add_argument("chosen", nargs="*", metavar="key=value", help="single numbers, e.g. start_n=50")
    args = parser.parse_args()
    args.systems, args.trials = args.systems.split(","), args.trials.split(",")
    for kind, names, known in (("system", args.systems, SYSTEMS), ("trial", args.trials, TRIALS)):
        if unknown := [name for name in names if name not in known]:
            parser.error(f"no {kind} {unknown[0]!r}; there are {', '.join(known)}")
    if wrong := [text for text in args.chosen if "=" not in text]:
        parser.error(f"{wrong[0]!r} is not key=value")
    return args


class Run:
    """One run of the benchmark and its figures so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rounds = args.rounds or (1 if args.quick else 3)
        self.settings = Settings(args.quick, dict(text.split("=", 1) for text in args.chosen))
        self.systems = {name: SYSTEMS[name]() for name in args.systems}
        self.versions = {name: version_of(system) for name, system in self.systems.items()}
        self.figures: Figures = {name: {} for name in self.systems}
        self.load = [os.getloadavg()[0]]
        self.failed = False

    def all_rounds(self) -> None:
        for number in range(self.rounds):
            names = list(self.systems)
            turn = number % len(names)
            for trial in self.args.trials:
                for name in names[turn:] + names[:turn]:
                    self.one(number, name, trial)
            self.load.append(os.getloadavg()[0])
            self.write()

    def one(self, number: int, name: str, trial: str) -> None:
        """One trial on one system; a failure costs this trial only."""
        figures = self.figures[name].setdefault(trial, {})
        if self.versions[name].startswith("n/a"):
            figures[WHOLE] = self.versions[name]
            return
        system, begin = self.systems[name], time.monotonic()
        try:
            for figure, value in TRIALS[trial](system, self.settings):
                self.keep(figures, figure, value)
        except NotOffered as reason:
            figures[WHOLE] = f"n/a: {reason}"
        except Exception as error:
            figures[WHOLE] = f"error: {error!r}"[:400]
            self.failed = True
            traceback.print_exc()
        finally:
            system.stop()
        seconds = time.monotonic() - begin
        print(
            f"round {number + 1}/{self.rounds}  {trial:12}{name:22}{seconds:6.1f} s",
            file=sys.stderr,
            flush=True,
        )

    @staticmethod
    def keep(figures: dict[str, Sample | str], figure: str, value: Sample | str) -> None:
        before = figures.get(figure)
        if isinstance(before, Sample) and isinstance(value, Sample):
            value = before.joined(value)
        figures[figure] = value

    def results(self) -> dict[str, Any]:
        """The figures as plain data."""
        return {
            name: {
                trial: {
                    figure: value.summary() if isinstance(value, Sample) else value
                    for figure, value in figures.items()
                }
                for trial, figures in trials.items()
            }
            for name, trials in self.figures.items()
        }

    def write(self) -> None:
        data = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "machine": describe_machine(self.load),
            "quick": self.args.quick,
            "rounds": self.rounds,
            "chosen": self.settings.chosen,
            "versions": self.versions,
            "results": self.results(),
        }
        self.args.output.parent.mkdir(parents=True, exist_ok=True)
        self.args.output.write_text(json.dumps(data, indent=1) + "\n")


def version_of(system: System) -> str:
    try:
        return system.version()
    except NotOffered as reason:
        return f"n/a: {reason}"


if __name__ == "__main__":
    sys.exit(main())
