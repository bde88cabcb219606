"""Device isolation: in system mode a job can open only the device files of its own GPUs."""

from __future__ import annotations

from collections.abc import Collection

from gflow.gpu.device_files import DeviceFiles

OFF = "gpu.isolate_devices is false"


class DeviceIsolation:
    """The rules about devices for each job. `problem`: why there are none; empty: they are enforced."""

    def __init__(self, problem: str, files: DeviceFiles | None = None) -> None:
        self.problem = problem
        self._files = files or DeviceFiles()

    def rules(self, uuids: Collection[str]) -> str:
        """The rules for a job that has these cards; empty: it may open all devices."""
        return "" if self.problem else self._files.rules(uuids)
