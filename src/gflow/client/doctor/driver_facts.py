"""Facts about the NVIDIA driver and each GPU, through NVML. No setting of a GPU is changed."""

from __future__ import annotations

import ctypes
import glob
import itertools
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gflow.client.doctor.programs import output_of, text_of
from gflow.diagnosis.doctor.facts import DriverFacts, GpuFacts
from gflow.diagnosis.xids import CARD_FAULTS
from gflow.gpu.nvml import Nvml
from gflow.gpu.port import Card

NVIDIA = "0x10de"
# Classes of PCI devices: VGA and 3D controllers.
DISPLAY = ("0x0300", "0x0302")
MOST_LINKS = 18
# NVML_P2P_CAPS_INDEX_READ, which is a tuple by mistake in pynvml.
CAN_READ = 0
FABRIC = {1: "not started", 2: "in progress", 3: "completed"}
P2P = {1: "not supported by the chipset", 2: "not supported by the GPU", 3: "not supported by the topology",
       4: "disabled by the driver", 5: "not supported"}  # fmt: skip


def read_driver() -> DriverFacts:
    look = Nvml().look()
    bus = _on_bus()
    common = DriverFacts(
        on_bus=len(bus),
        has_nouveau=any(_driver_of(path) == "nouveau" for path in bus),
        has_devices=bool(glob.glob("/dev/nvidia[0-9]*")),
    )
    if look.trouble:
        return common._replace(trouble=look.trouble, is_absent=look.absent)
    return common._replace(
        version=look.driver,
        cuda=_cuda_of_driver(),
        gpus=_numbered([_gpu(card) for card in look.cards]),
        closed_devices=_closed_devices(),
        xids=_logged_xids(),
        xid_meanings=CARD_FAULTS,
        **_peers(look.cards),
        mps_program=shutil.which("nvidia-cuda-mps-control") or "",
        is_mps_running=_is_mps_running(),
    )


def _numbered(gpus: list[GpuFacts]) -> tuple[GpuFacts, ...]:
    """The GPUs, with numbers for MIG slices, to which the driver gives none."""
    free = itertools.count(max((gpu.number for gpu in gpus), default=-1) + 1)
    return tuple(gpu if gpu.number >= 0 else gpu._replace(number=next(free)) for gpu in gpus)


def _gpu(card: Card) -> GpuFacts:
    return GpuFacts(
        number=card.number,
        model=card.model,
        memory_mib=card.memory_mib,
        uuid=card.uuid,
        problem=card.problem,
        temperature=card.sample.temperature,
        slowdown_at=card.vitals.slowdown_at,
        throttled=card.sample.slowed,
        ecc_errors=card.vitals.ecc_errors,
        is_remapping_failed=card.vitals.remapping_failed,
        pcie_width=card.vitals.width,
        pcie_most=card.vitals.most_width,
        numa_node=card.node,
        processes=tuple(process.pid for process in card.processes if not process.graphics),
        **_settings_of(card),
    )


def _settings_of(card: Card) -> dict[str, Any]:
    """Settings of a GPU that only an administrator changes, and its links."""
    import pynvml

    handle = _handle(card)
    if handle is None:
        return {}
    capability = _ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    rows = _ask(pynvml.nvmlDeviceGetRemappedRows, handle)
    ecc = _ask(pynvml.nvmlDeviceGetEccMode, handle)
    mig = _ask(pynvml.nvmlDeviceGetMigMode, handle)
    persistence = _ask(pynvml.nvmlDeviceGetPersistenceMode, handle)
    limit = _ask(pynvml.nvmlDeviceGetPowerManagementLimit, handle)
    usual = _ask(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    return {
        "compute_capability": f"{capability[0]}.{capability[1]}" if capability else "",
        "is_remapping_pending": bool(rows and rows[2]),
        "has_ecc": None if ecc is None else bool(ecc[0]),
        "is_mig": None if mig is None else bool(mig[0]),
        "is_mig_next": None if mig is None else bool(mig[1]),
        "slices": int(bool(card.parent)),
        "pcie_generation": _ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        "has_persistence": None if persistence is None else bool(persistence),
        "compute_mode": _ask(pynvml.nvmlDeviceGetComputeMode, handle),
        "power_limit_w": limit and limit / 1000,
        "power_usual_w": usual and usual / 1000,
        "fabric": _fabric(handle),
        **_links(handle),
    }


def _ask(question: Callable[..., Any], *arguments: Any) -> Any:
    """A question that this card, driver or binding may not know; None then."""
    import pynvml

    try:
        return question(*arguments)
    except (pynvml.NVMLError, AttributeError, TypeError, ctypes.ArgumentError):
        return None


def _handle(card: Card) -> Any:
    """NVML's handle of a GPU, or of the one that a MIG slice is part of."""
    import pynvml

    found = _ask(pynvml.nvmlDeviceGetHandleByUUID, card.parent or card.uuid)
    return found if found is not None or card.parent else _ask(pynvml.nvmlDeviceGetHandleByIndex, card.number)


def _links(handle: Any) -> dict[str, int]:
    """NVLinks: how many are up, how many there are, and their errors."""
    import pynvml

    states = [_ask(pynvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(MOST_LINKS)]
    known = [link for link, state in enumerate(states) if state is not None]
    kinds = (pynvml.NVML_NVLINK_ERROR_DL_REPLAY, pynvml.NVML_NVLINK_ERROR_DL_RECOVERY)
    errors = [
        _ask(pynvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, kind) or 0
        for link in known
        for kind in kinds
    ]
    return {"links": len(known), "links_up": sum(bool(state) for state in states), "link_errors": sum(errors)}


def _fabric(handle: Any) -> str:
    """The state of the NVSwitch fabric; empty: the GPU is not part of one."""
    import pynvml

    if not hasattr(pynvml, "c_nvmlGpuFabricInfo_t"):
        return ""
    info = pynvml.c_nvmlGpuFabricInfo_t()
    known = _ask(pynvml.nvmlDeviceGetGpuFabricInfo, handle, ctypes.byref(info)) is not None
    return FABRIC.get(info.state, "") if known else ""


def _peers(cards: tuple[Card, ...]) -> dict[str, Any]:
    """Pairs of GPUs that can read each other's memory, and those that cannot."""
    import pynvml

    wholes = [card for card in cards if not card.parent and not card.problem]
    states = {
        (first.number, second.number): _ask(
            pynvml.nvmlDeviceGetP2PStatus, _handle(first), _handle(second), CAN_READ
        )
        for first, second in itertools.combinations(wholes, 2)
    }
    return {
        "no_p2p": tuple((*pair, P2P[state]) for pair, state in states.items() if state in P2P),
        "p2p_pairs": sum(state == pynvml.NVML_P2P_STATUS_OK for state in states.values()),
    }


def _cuda_of_driver() -> tuple[int, int] | None:
    import pynvml

    number = _ask(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    return None if number is None else (number // 1000, number % 1000 // 10)


# ------------------------------------------------------------ the machine around the driver


def _closed_devices() -> tuple[str, ...]:
    devices = [*glob.glob("/dev/nvidia[0-9]*"), *glob.glob("/dev/nvidiactl"), *glob.glob("/dev/nvidia-uvm")]
    return tuple(path for path in devices if not os.access(path, os.R_OK | os.W_OK))


def _on_bus(folder: str = "/sys/bus/pci/devices") -> list[str]:
    """The NVIDIA GPUs on the PCI bus."""
    return [
        path
        for path in glob.glob(f"{folder}/*")
        if text_of(f"{path}/vendor").strip() == NVIDIA and text_of(f"{path}/class").startswith(DISPLAY)
    ]


def _driver_of(path: str) -> str:
    with suppress(OSError):
        return os.path.basename(os.readlink(f"{path}/driver"))
    return ""


def _logged_xids() -> tuple[int, ...]:
    """Numbers of Xids in the kernel's log, where this user may read it."""
    command = ["journalctl", "-k", "-b", "--no-pager", "-q", "--grep", "NVRM: Xid"]
    return parse_xids(output_of(command) or output_of(["dmesg"]) or "")


def parse_xids(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"NVRM: Xid \([^)]*\): (\d+)", text))


def _is_mps_running() -> bool:
    """Whether an MPS server listens in the usual folder; gflow has folders of its own."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    return os.path.exists(f"{folder}/control") and "gflow" not in folder
