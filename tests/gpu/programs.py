"""Programs that run on the GPU during the tests: unmanaged processes, trainings, jobs over their memory.

    python programs.py NAME [arguments]

Raw CUDA goes through ctypes, so that no framework stands between a hog and the card.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

GIB = 1 << 30


class Cuda:
    """The driver's own allocator on the first visible GPU."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.check(self.lib.cuInit(0))
        self.check(self.lib.cuDeviceGet(ctypes.byref(device), 0))
        self.check(self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self.check(self.lib.cuCtxSetCurrent(context))

    def check(self, code: int) -> None:
        if code:
            raise MemoryError(f"CUDA error {code}")

    def take(self, size: int) -> int:
        """Memory; raises MemoryError when there is none for us."""
        place = ctypes.c_ulonglong()
        self.check(self.lib.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(size)))
        return place.value

    def give_back(self, place: int) -> None:
        self.lib.cuMemFree_v2(ctypes.c_ulonglong(place))


def say(folder: str, name: str, text: str = "") -> None:
    """Leave word for the test, whole or not at all."""
    path = Path(folder) / name
    path.with_suffix(".new").write_text(f"{time.time():.4f} {text}\n")
    path.with_suffix(".new").rename(path)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.002)


def victim(folder: str, size_gib: str) -> None:
    """Takes and gives back memory without a pause; notes every time it does not get any."""
    cuda = Cuda()
    tries = 0
    with open(f"{folder}/victim.log", "a", buffering=1) as log:
        log.write(f"{time.time():.4f} up {os.getpid()}\n")
        say(folder, "victim.up")
        while not Path(folder, "victim.stop").exists():
            try:
                cuda.give_back(cuda.take(int(float(size_gib) * GIB)))
                tries += 1
            except MemoryError as error:
                log.write(f"{time.time():.4f} refused {error}\n")
            if tries % 50 == 0:
                log.write(f"{time.time():.4f} fine {tries}\n")
            time.sleep(0.004)


def _overrun(folder: str, name: str, take, limit_gib: float, most_gib: int) -> None:
    """Take GiB after GiB until the process is stopped: note when we exceed what we said."""
    wait_for(Path(folder, f"{name}.go"))
    taken = 0
    try:
        for taken in range(1, most_gib + 1):
            take()
            if taken == int(limit_gib) + 1:
                say(folder, f"{name}.over", str(os.getpid()))
    except Exception as error:
        say(folder, f"{name}.refused", f"{taken - 1} {type(error).__name__} {error}"[:200])
        time.sleep(1.0)
        return
    say(folder, f"{name}.full", str(taken))
    time.sleep(60)


def hog_raw(folder: str, name: str, limit_gib: str, most_gib: str, pause_s: str = "0") -> None:
    """`pause_s`: how long it waits between two GiB, as a program that grows does."""
    cuda = Cuda()
    say(folder, f"{name}.up")

    def take() -> None:
        cuda.take(GIB)
        time.sleep(float(pause_s))

    _overrun(folder, name, take, float(limit_gib), int(most_gib))


def hog_torch(folder: str, name: str, limit_gib: str, most_gib: str, deaf: str = "") -> None:
    """`deaf`: as a program that does not listen to the fraction it is told."""
    import torch

    torch.zeros(1, device="cuda")
    if deaf:
        torch.cuda.set_per_process_memory_fraction(1.0)
    say(folder, f"{name}.up")
    kept = []

    def take() -> None:
        kept.append(torch.empty(GIB, dtype=torch.uint8, device="cuda"))

    _overrun(folder, name, take, float(limit_gib), int(most_gib))


def hog_jax(folder: str, name: str, limit_gib: str, most_gib: str, deaf: str = "") -> None:
    """`deaf`: as a program that sets the fraction itself."""
    if deaf:
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.95"
    import jax.numpy as jnp

    jnp.zeros(1).block_until_ready()
    say(folder, f"{name}.up")
    kept = []

    def take() -> None:
        kept.append(jnp.zeros(GIB, dtype=jnp.uint8).block_until_ready())

    _overrun(folder, name, take, float(limit_gib), int(most_gib))


def stranger(folder: str, size_gib: str) -> None:
    """A program of a user, outside of gflow; in PyTorch where it is installed."""
    size = int(float(size_gib) * GIB)
    try:
        import torch
    except ImportError:
        cuda = Cuda()
        kept: object = cuda, cuda.take(size)
    else:
        kept = torch.empty(size, dtype=torch.uint8, device="cuda")
    say(folder, "stranger.up", str(os.getpid()))
    wait_for(Path(folder, "stranger.stop"))
    del kept


def train(seconds: str) -> None:
    """A small training that keeps the GPU busy."""
    import torch

    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(8))).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    end, steps = time.time() + float(seconds), 0
    while time.time() < end:
        loss = model(torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if steps % 50 == 0:
            torch.cuda.synchronize()
    print(f"{steps} steps, loss {loss.item():.4f}")


def who() -> None:
    """Which GPU a job sees."""
    Cuda()
    name = ""
    with suppress(ImportError):
        import torch

        name = torch.cuda.get_device_name(0)
    print("visible:", os.environ.get("CUDA_VISIBLE_DEVICES"), name)


def hold(size_gib: str, seconds: str) -> None:
    """Takes memory and does nothing with it."""
    cuda = Cuda()
    cuda.take(int(float(size_gib) * GIB))
    time.sleep(float(seconds))


# Writes to address 0: the driver ends the program and reports error 31.
WILD = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry wild() {
    .reg .u64 %place;
    .reg .u32 %value;
    mov.u64 %place, 0;
    mov.u32 %value, 1;
    st.global.u32 [%place], %value;
    ret;
}
"""


def crash() -> None:
    """A program with a wild pointer, as they happen."""
    cuda = Cuda()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    cuda.check(cuda.lib.cuModuleLoadData(ctypes.byref(module), WILD))
    cuda.check(cuda.lib.cuModuleGetFunction(ctypes.byref(function), module, b"wild"))
    nothing = ctypes.c_void_p()
    cuda.check(cuda.lib.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nothing, nothing, nothing))
    print("CUDA says", cuda.lib.cuCtxSynchronize())


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
