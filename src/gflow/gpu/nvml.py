"""NVIDIA's GPUs through NVML. Read only: no clock, power limit, mode or MIG layout is ever changed.

The order of GPUs is fixed when the library is initialised, so after any error that is more than
"this card cannot do that", and while a GPU is missing, it is initialised again.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gflow.gpu.port import Card, Look, Process, Sample, Vitals

MIB = 1 << 20
# Seconds between two attempts while something fails or is missing: first and last (exponential back-off).
AGAIN_S = 2.0
RARELY_S = 60.0
# Seconds between checks for new cards or MIG layouts, and between health figures.
COUNT_S = 10.0
VITALS_S = 5.0
LIBRARY = "libnvidia-ml.so.1"
DRIVER_LIST = "/proc/driver/nvidia/gpus"


class Nvml:
    """The GPUs of this machine. All methods are called from one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lib: Any = None
        self._handles: dict[str, Any] = {}
        self._cards: dict[str, Card] = {}
        self._events: Any = None
        self._ready = False
        self._stale = False
        self._tried_at = float("-inf")
        self._again_s = AGAIN_S
        # All whole cards seen so far.
        self._ever: set[str] = set()
        self._counted_at = 0.0
        self._layout: object = None
        self._vitals_at = float("-inf")
        self._vitals_of: dict[str, Vitals] = {}
        self._trouble = Look()
        self._driver = ""

    def look(self) -> Look:
        self._refresh()
        if not self._ready:
            return self._trouble
        now = self._clock()
        if now - self._vitals_at >= VITALS_S:
            self._vitals_at = now
            self._vitals_of = {}
        cards = tuple(self._card(uuid) for uuid in self._cards)
        return Look(cards, xids=self._xids(), driver=self._driver)

    def processes(self, uuid: str) -> tuple[Process, ...]:
        handle = self._handles.get(uuid)
        if handle is None:
            return ()
        try:
            return self._processes(handle)
        except self._lib.NVMLError:
            self._stale = True
            return ()

    # ------------------------------------------------------------ opening

    def _refresh(self) -> None:
        """Open the library, or open it again if its list of GPUs may be stale."""
        now = self._clock()
        if self._ready and not self._stale and now - self._counted_at >= COUNT_S:
            self._counted_at = now
            self._stale = self._layout != self._current_layout()
        if (self._ready and not self._stale) or now - self._tried_at < self._again_s:
            return
        self._tried_at = self._counted_at = now
        self._stale = False
        self._open()
        whole = self._ready and self._ever <= self._handles.keys()
        self._stale = self._stale or not whole
        self._again_s = AGAIN_S if whole else min(RARELY_S, self._again_s * 2)

    def _open(self) -> None:
        if self._lib is None:
            try:
                ctypes.CDLL(LIBRARY)  # before the import, which costs megabytes in vain without a driver
                import pynvml
            except (OSError, ImportError) as error:
                self._trouble = Look(absent=True, trouble=str(error))
                return
            self._lib = pynvml
        pynvml = self._lib
        if self._ready:
            self._ready = False
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
        self._handles, self._events = {}, None
        try:
            pynvml.nvmlInit()
            self._driver = _text(pynvml.nvmlSystemGetDriverVersion())
            self._find()
            self._layout = self._current_layout()
            self._ready = True
        except pynvml.NVMLError as error:
            gone = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
            absent = error.value in gone and not self._cards
            self._trouble = Look(trouble=f"NVML: {error}", absent=absent)

    def _current_layout(self) -> object:
        """Cards and slices as they are now; when this changes, everything is read again."""
        with suppress(OSError):
            listed = sorted(os.listdir(DRIVER_LIST))
            return listed, self._slices()
        return self._slices()

    def _slices(self) -> list[str]:
        """The UUIDs of all MIG slices."""
        wholes = [handle for uuid, handle in self._handles.items() if not uuid.startswith("MIG")]
        return [uuid for handle in wholes for uuid, _ in self._slices_of(handle)]

    def _find(self) -> None:
        """The machine's GPUs and MIG slices, by UUID, with what never changes about them."""
        lib = self._lib
        events = self._optional(lib.nvmlEventSetCreate)
        cards: dict[str, Card] = {}
        for number in range(lib.nvmlDeviceGetCount()):
            try:
                handle = lib.nvmlDeviceGetHandleByIndex(number)
                uuid = lib.nvmlDeviceGetUUID(handle)
            except lib.NVMLError:  # lost, and not identifiable: it is noticed by its absence
                self._stale = True
                continue
            slices = self._slices_of(handle)
            self._handles[uuid] = handle
            self._ever.add(uuid)
            if events is not None:
                self._optional(
                    lib.nvmlDeviceRegisterEvents, handle, lib.nvmlEventTypeXidCriticalError, events
                )
            whole = self._facts(handle, uuid, number)
            if not slices:
                cards[uuid] = whole
            for uuid_of_slice, slice_handle in slices:
                self._handles[uuid_of_slice] = slice_handle
                part = self._facts(slice_handle, uuid_of_slice, -1)
                cards[uuid_of_slice] = part._replace(parent=uuid, node=whole.node, bus=whole.bus)
        self._events = events
        self._cards = {uuid: card._replace(links=self._links(uuid, cards)) for uuid, card in cards.items()}

    def _facts(self, handle: Any, uuid: str, number: int) -> Card:
        lib = self._lib
        memory = lib.nvmlDeviceGetMemoryInfo(handle).total // MIB
        pci = self._optional(lib.nvmlDeviceGetPciInfo, handle)
        bus = _text(pci.busId) if pci is not None else ""
        node = self._optional(lib.nvmlDeviceGetNumaNodeId, handle)
        return Card(
            uuid=uuid,
            number=number,
            model=lib.nvmlDeviceGetName(handle),
            memory_mib=memory,
            bus=bus,
            node=_node_of(bus) if node is None else node,
        )

    def _slices_of(self, handle: Any) -> list[tuple[str, Any]]:
        """The MIG slices of a GPU; none if it is whole."""
        lib = self._lib
        mode = self._optional(lib.nvmlDeviceGetMigMode, handle)
        if mode is None or mode[0] != lib.NVML_DEVICE_MIG_ENABLE:
            return []
        slices = []
        for place in range(self._optional(lib.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            part = self._optional(lib.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
            if part is not None:
                slices.append((lib.nvmlDeviceGetUUID(part), part))
        return slices

    def _links(self, uuid: str, cards: dict[str, Card]) -> tuple[str, ...]:
        """The GPUs that this one reaches over NVLink."""
        if cards[uuid].parent:
            return ()
        lib, handle = self._lib, self._handles[uuid]
        return tuple(
            other
            for other, card in cards.items()
            if other != uuid
            and not card.parent
            and self._optional(
                lib.nvmlDeviceGetP2PStatus, handle, self._handles[other], lib.NVML_P2P_CAPS_INDEX_NVLINK
            )
            == lib.NVML_P2P_STATUS_OK
        )

    # ------------------------------------------------------------ reading

    def _card(self, uuid: str) -> Card:
        """The state of this GPU. An error is noted in the card and does not affect the others."""
        card, handle = self._cards[uuid], self._handles[uuid]
        try:
            processes = self._processes(handle)
            memory = self._memory(handle)
        except self._lib.NVMLError as error:
            self._stale = True
            return card._replace(problem=str(error))
        meters = self._handles.get(card.parent, handle)
        vitals = self._vitals_of.get(uuid)
        if vitals is None:
            vitals = self._vitals_of[uuid] = self._vitals(meters)
        sample = self._sample(handle, meters, memory)
        return card._replace(processes=processes, sample=sample, vitals=vitals)

    def _memory(self, handle: Any) -> int:
        """Used memory without what the driver keeps for itself, where it reports the two separately."""
        lib = self._lib
        try:
            used: int = lib.nvmlDeviceGetMemoryInfo(handle, version=lib.nvmlMemory_v2).used
        except (lib.NVMLError_FunctionNotFound, lib.NVMLError_NotSupported):
            used = lib.nvmlDeviceGetMemoryInfo(handle).used
        return used // MIB

    def _processes(self, handle: Any) -> tuple[Process, ...]:
        """Compute, MPS and graphics processes, each once."""
        lib = self._lib
        found: dict[int, Process] = {}
        for ask in (
            lib.nvmlDeviceGetComputeRunningProcesses_v3,
            lib.nvmlDeviceGetMPSComputeRunningProcesses_v3,
        ):
            for raw in self._listed(ask, handle):
                used = None if raw.usedGpuMemory is None else raw.usedGpuMemory // MIB
                before = found.get(raw.pid)
                if before is None or (used or 0) > (before.memory_mib or 0):
                    found[raw.pid] = Process(raw.pid, used)
        for raw in self._listed(lib.nvmlDeviceGetGraphicsRunningProcesses_v3, handle):
            used = None if raw.usedGpuMemory is None else raw.usedGpuMemory // MIB
            found.setdefault(raw.pid, Process(raw.pid, used, graphics=True))
        return tuple(found.values())

    def _listed(self, ask: Callable[[Any], list[Any]], handle: Any) -> list[Any]:
        lib = self._lib
        try:
            return ask(handle)
        except (lib.NVMLError_NotSupported, lib.NVMLError_FunctionNotFound, lib.NVMLError_InvalidArgument):
            return []  # an old driver, or a kind of process this card does not know

    def _sample(self, handle: Any, meters: Any, memory: int) -> Sample:
        lib, ask = self._lib, self._optional
        rates = ask(lib.nvmlDeviceGetUtilizationRates, handle)
        power = ask(lib.nvmlDeviceGetPowerUsage, meters)
        return Sample(
            memory_mib=memory,
            utilisation=None if rates is None else rates.gpu,
            power_w=None if power is None else power / 1000,
            temperature=ask(lib.nvmlDeviceGetTemperature, meters, lib.NVML_TEMPERATURE_GPU),
            clock_mhz=ask(lib.nvmlDeviceGetClockInfo, meters, lib.NVML_CLOCK_SM),
            memory_clock_mhz=ask(lib.nvmlDeviceGetClockInfo, meters, lib.NVML_CLOCK_MEM),
            slowed=ask(lib.nvmlDeviceGetCurrentClocksEventReasons, meters)
            or ask(lib.nvmlDeviceGetCurrentClocksThrottleReasons, meters)
            or 0,
        )

    def _vitals(self, handle: Any) -> Vitals:
        lib, ask = self._lib, self._optional
        rows = ask(lib.nvmlDeviceGetRemappedRows, handle)
        return Vitals(
            ecc_errors=ask(
                lib.nvmlDeviceGetTotalEccErrors,
                handle,
                lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                lib.NVML_VOLATILE_ECC,
            ),
            remapping_failed=bool(rows and rows[3]),
            width=ask(lib.nvmlDeviceGetCurrPcieLinkWidth, handle),
            most_width=ask(lib.nvmlDeviceGetMaxPcieLinkWidth, handle),
            slowdown_at=ask(
                lib.nvmlDeviceGetTemperatureThreshold, handle, lib.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
            ),
        )

    def _xids(self) -> tuple[tuple[str, int], ...]:
        """Xid errors that the driver has reported since the last look."""
        lib = self._lib
        found: list[tuple[str, int]] = []
        while self._events is not None and len(found) < 64:
            try:
                event = lib.nvmlEventSetWait_v2(self._events, 0)
                found.append((lib.nvmlDeviceGetUUID(event.device), int(event.eventData)))
            except lib.NVMLError:  # usually a timeout: no event
                break
        return tuple(found)

    def _optional(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        """A query that this card or driver may not support; None then."""
        try:
            return ask(*arguments)
        except self._lib.NVMLError:
            return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _node_of(bus: str) -> int:
    """The NUMA node of a PCI device such as 00000000:1B:00.0; -1 if the machine has none."""
    domain, _, rest = bus.lower().partition(":")
    with suppress(OSError, ValueError), open(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node") as file:
        return int(file.read())
    return -1
