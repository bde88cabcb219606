"""The figures that a GPU should reach: from the GPU catalogue, by the model that the driver reports."""

from __future__ import annotations

from gflow.diagnosis.doctor.facts import GpuFacts
from gflow.diagnosis.doctor.self_test import LOW, PCIE_LANE, Measurement
from gflow.ml.fit.catalogue import MEMORY_SLACK, Gpu, catalogue, gpu_named, words_of

# Words of a model that make it another GPU than the one of the catalogue with that name.
VARIANTS = frozenset({"TI", "SUPER", "LAPTOP", "MOBILE", "NVL", "MAX", "PCIE", "D", "GH200", "GB200"})
# Cards whose PCIe version has the same peak.
SAME_AS_PCIE = frozenset({"A100", "V100", "T4", "L4", "L40S", "A10G"})
# Cards with a small power budget reach less of their data sheet in a long matrix product.
REACHED = {"T4": 0.35, "L4": 0.35, "A10G": 0.4, "L40S": 0.45}
PRODUCTS = ("bf16", "fp16", "fp32")


def find_model(model: str, memory_mib: int, known: dict[str, Gpu]) -> Gpu | None:
    """The catalogue's GPU for a model such as `NVIDIA A100-SXM4-80GB`; None: it has none of this version."""
    gpu = gpu_named(model, memory_mib / 1024, known)
    if gpu is None or abs(memory_mib / 1024 / gpu.memory_gib - 1) >= MEMORY_SLACK:
        return None
    own = words_of(gpu.name)
    variants = VARIANTS - own - ({"PCIE"} if own & SAME_AS_PCIE else set())
    return None if words_of(model) & variants else gpu


def with_expectation(one: Measurement, gpus: dict[int, GpuFacts], known: dict[str, Gpu]) -> Measurement:
    """The measurement with its expected figure."""
    card = gpus[one.gpus[0]]
    entry = None if card.is_mig else find_model(card.model, card.memory_mib, known)
    low = REACHED.get(entry.name, LOW) if entry and one.name in PRODUCTS else LOW
    return one._replace(expected=_expected(one, card, entry, gpus), low=low)


def _expected(one: Measurement, card: GpuFacts, entry: Gpu | None, gpus: dict[int, GpuFacts]) -> float | None:
    if one.name in ("upload", "download"):
        return _pcie(card)
    if entry is None:
        return None
    figures = {"bf16": entry.bf16, "fp16": entry.bf16, "fp32": entry.fp32, "memory": entry.bandwidth}
    if one.name in figures:
        return figures[one.name]
    # NVLink's figure is for both directions; without NVLink there is no figure for several GPUs.
    is_linked = all(gpus[number].links_up for number in one.gpus)
    return entry.nvlink / 2 if entry.nvlink and is_linked else None


def _pcie(card: GpuFacts) -> float | None:
    """GB/s of the GPU's PCIe link at its best."""
    lane = PCIE_LANE.get(card.pcie_generation or 0)
    return lane * card.pcie_most if lane and card.pcie_most else None


def add_expectations(found: tuple[Measurement, ...], gpus: dict[int, GpuFacts]) -> tuple[Measurement, ...]:
    known = catalogue()
    return tuple(with_expectation(one, gpus, known) for one in found)
