"""GPU architectures: the properties that memory use depends on, with the source of each figure."""

from __future__ import annotations

from typing import NamedTuple

MIB = 1 << 20


class Architecture(NamedTuple):
    """A GPU architecture, as far as memory depends on it."""

    name: str
    # Compute capability, major and minor.
    capability: tuple[int, int]
    # Streaming multiprocessors, and threads per multiprocessor: they determine the workspace of reductions.
    processors: int
    threads: int
    # Bytes of driver, CUDA context and loaded kernels, outside the allocator's memory.
    context: int

    @property
    def is_foreign(self) -> bool:
        """Whether its libraries are not those that the rules are about."""
        return self.name == "cdna3"

    @property
    def blas(self) -> int:
        """cuBLAS's workspace, one per thread that multiplies matrices.

        ATen/cuda/CublasHandlePool: 32 MiB from Hopper on, `:4096:2:16:8` (8.125 MiB) before.
        """
        return 32 * MIB if self.capability[0] >= 9 else 4096 * 1024 * 2 + 16 * 1024 * 8

    @property
    def blas_lt(self) -> int:
        """cuBLASLt's workspace, one per thread that multiplies and adds a bias (ATen/cuda/CUDABlas)."""
        return MIB


# The context was measured on the H200 only (620 MiB, and 146 more for the kernels that a training run loads).
# The others are assumed to need as much, which is a safe bound for older ones.
MEASURED_CONTEXT = 766 * MIB
ARCHITECTURES = {
    arch.name: arch
    for arch in (
        Architecture("volta", (7, 0), 80, 2048, MEASURED_CONTEXT),
        Architecture("turing", (7, 5), 40, 1024, MEASURED_CONTEXT),
        Architecture("ampere", (8, 0), 108, 2048, MEASURED_CONTEXT),
        Architecture("ampere-consumer", (8, 6), 82, 1536, MEASURED_CONTEXT),
        Architecture("ada", (8, 9), 128, 1536, MEASURED_CONTEXT),
        Architecture("hopper", (9, 0), 132, 2048, MEASURED_CONTEXT),
        Architecture("blackwell", (10, 0), 148, 2048, MEASURED_CONTEXT),
        # AMD, by the rules of NVIDIA's libraries (`is_foreign`).
        Architecture("cdna3", (9, 4), 304, 2048, MEASURED_CONTEXT),
    )
}
HOPPER = ARCHITECTURES["hopper"]
