"""gflow memory: the processes and jobs that hold the memory of each GPU, once or live."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gflow.client import hot_path, http
from gflow.errors import Unreachable
from gflow.options.commands.memory_options import SHOW, WATCH
from gflow.options.job_options import refuse
from gflow.options.parse import parse

if TYPE_CHECKING:
    from gflow.text.memory_page import Trace
    from gflow.wire.answers.gpu_memory import GpuMemoryAnswer, MemoryUse

ABOUT = """Show the memory of each GPU: used and free, every process on it with its user
and its job, the peak of that job, and what a new job could get.

Processes that belong to no job are listed, too. Without a daemon the driver is
asked directly, and jobs are not known."""
WATCH_ABOUT = """Show the memory of each GPU live, until Ctrl-C: what each process has gained since
the start of the watch, and the most that it used."""
EXAMPLES = """gflow memory
gflow memory --sort job
gflow memory --json
gflow memory watch"""
WATCH_EXAMPLES = """gflow memory watch
gflow memory watch -n 1 --sort growth
gflow memory watch --json -c 60 > memory.jsonl"""
PATH = "/gpus/memory"


def run(words: list[str]) -> int:
    is_watch = "watch" in words
    options = WATCH if is_watch else SHOW
    values, rest = parse(words, options)
    if "help" in values:
        from gflow.options import help

        page = (
            ("gflow memory watch [options]", WATCH_ABOUT, WATCH, WATCH_EXAMPLES)
            if is_watch
            else ("gflow memory [watch] [options]", ABOUT, SHOW, EXAMPLES)
        )
        sys.stdout.write(help.render(*page))
        return 0
    if unknown := [word for word in rest if word != "watch"] or rest[1:]:
        refuse(f"unexpected argument {unknown[0]!a}", "gflow memory, or gflow memory watch")
    _check_order(values, options)
    return _watch(values, words) if is_watch else _show(values)


def _check_order(values: dict[str, Any], options: tuple[Any, ...]) -> None:
    choices = next(option.choices for option in options if option.name == "sort")
    if (order := values.get("sort", "memory")) not in choices:
        from gflow.errors import did_you_mean

        refuse(f"--sort does not know {order!a:.40}", did_you_mean(order, choices, ", ".join(choices)))


def _show(values: dict[str, Any]) -> int:
    query = {"sort": values.get("sort", "")}
    if "json" not in values:
        query |= hot_path.terminal()
    try:
        return http.show(PATH, as_json="json" in values, **query)
    except (ConnectionError, Unreachable):
        found = _local()(values.get("sort", ""))
    hot_path.write(1, _json_line(found) if "json" in values else _page(found, None).encode())
    return 0


def _local() -> Callable[[str], GpuMemoryAnswer]:
    """The reader for a machine without a daemon; raises if there is no GPU either."""
    from gflow.client.local_memory import LocalMemory

    memory = LocalMemory()
    if memory.trouble:
        raise Unreachable(
            f"the gflow daemon is not running, and GPUs cannot be read without it: {memory.trouble}",
            hint="start the daemon with: gflowd up",
        )
    return memory.read


def _page(found: GpuMemoryAnswer, traces: dict[tuple[int, int], Trace] | None) -> str:
    """The page for this terminal. `traces`: of a watch."""
    from gflow.errors import clean_page
    from gflow.text.memory_page import memory_page

    columns = int(hot_path.terminal().get("width", 0))
    note = f"({found.trouble})\n" if found.trouble and found.gpus else ""
    return clean_page(memory_page(found, columns, traces) + note)


def _json_line(found: Any) -> bytes:
    import msgspec

    return http.json_line(msgspec.json.encode(found))


# ---------------------------------------------------------------- watch


def _watch(values: dict[str, Any], words: list[str]) -> int:
    from gflow.cli.common.watch import watch

    sampler, is_data = _Sampler(values.get("sort", "memory")), "json" in values
    return watch(
        sampler.sample_json if is_data else sampler.sample_page,
        values.get("interval", 2),
        "gflow memory " + " ".join(words),
        is_data=is_data,
        count=values.get("count"),
    )


class _Sampler:
    """Samples of the GPUs since the watch began, and the trace of each process."""

    def __init__(self, order: str) -> None:
        self._order = order
        self._traces: dict[tuple[int, int], Trace] = {}
        self._read: Callable[[str], GpuMemoryAnswer] = _ask
        self._is_first = True

    def sample_page(self) -> bytes:
        return _page(self._sample(), self._traces).encode()

    def sample_json(self) -> bytes:
        """One line: the answer of the API, its time, and growth and peak of each process."""
        import msgspec

        found = self._sample()
        data = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **msgspec.to_builtins(found)}
        for gpu in data["gpus"]:
            for one in gpu["processes"]:
                trace = self._traces.get((gpu["index"], one["pid"] or 0))
                one["growth_mib"] = trace and one["memory_mib"] - trace.first_mib
                one["peak_mib"] = trace and trace.peak_mib
        return _json_line(data)

    def _sample(self) -> GpuMemoryAnswer:
        order = "" if self._order == "growth" else self._order
        try:
            found = self._read(order)
        except (ConnectionError, Unreachable):
            if not self._is_first:
                raise
            self._read = _local()
            found = self._read(order)
        self._is_first = False
        self._trace(found)
        return found

    def _trace(self, found: GpuMemoryAnswer) -> None:
        """Update the traces. A process that has ended is forgotten: its pid may come back."""
        from gflow.text.memory_page import Trace

        before, self._traces = self._traces, {}
        for gpu in found.gpus:
            for one in gpu.processes:
                if one.pid is not None and one.memory_mib is not None:
                    old = before.get((gpu.index, one.pid), Trace(one.memory_mib, 0))
                    peak = max(old.peak_mib, one.memory_mib)
                    self._traces[gpu.index, one.pid] = Trace(old.first_mib, peak)
            if self._order == "growth":
                gpu.processes.sort(key=lambda one: -self._growth(gpu.index, one))

    def _growth(self, index: int, one: MemoryUse) -> int:
        trace = self._traces.get((index, one.pid or 0))
        return (one.memory_mib or 0) - trace.first_mib if trace else 0


def _ask(order: str) -> GpuMemoryAnswer:
    import msgspec

    from gflow.wire.answers.gpu_memory import GpuMemoryAnswer

    content = http.ask("GET", PATH, b"", "application/json", {"sort": order})
    return msgspec.json.decode(content, type=GpuMemoryAnswer)
