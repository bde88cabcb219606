"""Checks of the connections between GPUs: NVLink, NVSwitch fabric, peer-to-peer copies, NUMA nodes."""

from __future__ import annotations

from collections.abc import Iterator

from gflow.diagnosis.doctor.facts import DriverFacts, Facts, GpuFacts
from gflow.diagnosis.doctor.report import CheckResult, ok, problem, warning

# Replays and recoveries of NVLinks since the driver was loaded; more mean a bad connection.
MOST_LINK_ERRORS = 100


def check_topology(facts: Facts) -> Iterator[CheckResult]:
    driver = facts.driver
    for gpu in driver.gpus:
        yield from _check_links(gpu)
    yield from _check_peers(driver)
    yield from _check_nodes(driver, facts.host.numa_nodes)


def _check_links(gpu: GpuFacts) -> Iterator[CheckResult]:
    here = f"GPU {gpu.number}"
    if gpu.links and gpu.fabric and gpu.fabric != "completed":
        yield problem(
            "fabric",
            f"{here}: the NVSwitch fabric is {gpu.fabric}; CUDA fails with error 802",
            "systemctl restart nvidia-fabricmanager (as root)",
        )
    if 0 < gpu.links_up < gpu.links:
        yield warning(
            "nvlink-down",
            f"{here}: {gpu.links - gpu.links_up} of {gpu.links} NVLinks are down",
            f"nvidia-smi nvlink -s -i {gpu.number}",
        )
    if gpu.link_errors > MOST_LINK_ERRORS:
        yield warning(
            "nvlink-errors",
            f"{here}: {gpu.link_errors} errors on its NVLinks",
            f"nvidia-smi nvlink -e -i {gpu.number}",
        )


def _check_peers(driver: DriverFacts) -> Iterator[CheckResult]:
    if driver.no_p2p:
        first, second, why = driver.no_p2p[0]
        more = f" and {len(driver.no_p2p) - 1} more pairs" if len(driver.no_p2p) > 1 else ""
        yield warning(
            "p2p",
            f"GPUs {first} and {second}{more} cannot copy to each other directly ({why}): NCCL is slower",
            "nvidia-smi topo -p2p r; check IOMMU and ACS in the firmware",
        )
    elif driver.p2p_pairs:
        is_linked = any(gpu.links_up for gpu in driver.gpus)
        yield ok("p2p", f"the GPUs copy to each other directly{', over NVLink' if is_linked else ''}")


def _check_nodes(driver: DriverFacts, nodes: int) -> Iterator[CheckResult]:
    if nodes < 2 or not driver.gpus:
        return
    unknown = [str(gpu.number) for gpu in driver.gpus if gpu.numa_node < 0 and not gpu.problem]
    if unknown:
        yield warning(
            "numa",
            f"the NUMA node of GPU {', '.join(unknown)} is not known: CPUs are not chosen near it",
            "cat /sys/bus/pci/devices/*/numa_node; update the firmware",
        )
        return
    placed = ", ".join(f"GPU {gpu.number} on node {gpu.numa_node}" for gpu in driver.gpus)
    yield ok("numa", f"{nodes} NUMA nodes: {placed}")
