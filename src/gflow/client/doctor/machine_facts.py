"""Collect the facts of this machine for `gflow doctor`. Nothing is changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from gflow.client.doctor.cuda_facts import read_cuda
from gflow.client.doctor.daemon_facts import GpuUse, read_daemon
from gflow.client.doctor.driver_facts import read_driver
from gflow.client.doctor.host_facts import read_host
from gflow.client.doctor.python_facts import read_python
from gflow.client.stack_sampler import find_sampler
from gflow.diagnosis.doctor.facts import DriverFacts, Facts, GpuFacts
from gflow.install_hint import install_hint

# Seconds after which the parts that are still being read are given up.
PATIENCE_S = 2.2


def collect(patience_s: float | None = None) -> Facts:
    """All facts. The parts are read at the same time; one that fails or hangs leaves its fields empty."""
    patience_s = PATIENCE_S if patience_s is None else patience_s
    parts: dict[str, Callable[[], Any]] = {
        "the daemon": read_daemon,
        "the driver": read_driver,
        "Python": read_python,
        "the host": read_host,
        "CUDA": read_cuda,
    }
    found, errors = _read_together(parts, patience_s)
    usual = Facts()
    daemon, use = found.get("the daemon", (usual.daemon, {}))
    slow = DriverFacts(trouble=f"it has not answered within {patience_s:g} s", is_slow=True)
    failed = DriverFacts(trouble=errors.get("the driver", "").strip(" ()"))
    driver = found.get("the driver", failed if failed.trouble else slow)
    late = tuple(part for part in parts if part not in found and part != "the driver")
    missing = missing_extras()
    return Facts(
        with_use(driver, use),
        found.get("Python", usual.python),
        found.get("the host", usual.host),
        daemon,
        found.get("CUDA", usual.cuda),
        tuple(f"{part}{errors.get(part, '')}" for part in late),
        missing,
        install_hint(",".join(missing)) if missing else "",
    )


def missing_extras() -> tuple[str, ...]:
    """The extras of the terminal that are not installed."""
    has = {"spy": bool(find_sampler()), "tui": find_spec("textual") is not None}
    return tuple(extra for extra, is_there in has.items() if not is_there)


def with_use(driver: DriverFacts, use: dict[str, GpuUse]) -> DriverFacts:
    """The driver's GPUs with the index, jobs and processes that the daemon knows."""

    def known(gpu: GpuFacts) -> GpuFacts:
        if gpu.uuid not in use:
            return gpu
        number, jobs, foreign = use[gpu.uuid]
        return gpu._replace(number=number, jobs=jobs, foreign=foreign)

    return driver._replace(gpus=tuple(map(known, driver.gpus)))


def _read_together(
    parts: dict[str, Callable[[], Any]], patience_s: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """What each part returned in time, and the errors of those that failed.

    The threads are daemons: a call into a driver that hangs does not keep the command from ending.
    """
    found: dict[str, Any] = {}
    errors: dict[str, str] = {}

    def read(name: str) -> None:
        try:
            found[name] = parts[name]()
        except Exception as error:  # a machine may lack anything
            errors[name] = f" ({type(error).__name__}: {error})"

    threads = [threading.Thread(target=read, args=(name,), daemon=True) for name in parts]
    for thread in threads:
        thread.start()
    until = time.monotonic() + patience_s
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return dict(found), dict(errors)
