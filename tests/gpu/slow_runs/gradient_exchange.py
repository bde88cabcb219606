"""Slow on purpose: two ranks exchange the gradients of a large model over gloo after a small step."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


def train(rank: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ.get("GFLOW_TEST_PORT", "29533")}
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    width = 4096 if device != "cpu" else 1536
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(8))).to(device)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-4)
    data = torch.randn(8, 4, width, device=device)
    step = 0
    while True:
        loss = parallel(data[step % 8]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 20 == 1 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, nprocs=RANKS)
