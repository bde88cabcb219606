"""Several ranks of a run, forked from a process that has PyTorch loaded: a start costs milliseconds."""

from __future__ import annotations

import importlib
import os
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from gflow.ml.launch.plan import Plan, variables
from gflow.ml.launch.ports import free_port

# What would be loaded by each of them at its first step.
torch.set_num_threads(1)
torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))]).step()
for name in ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict"):
    importlib.import_module(name)
# No rank may wait longer than this for a rank that is gone.
PATIENCE_S = 10.0


def ranks(world: int, act: Callable[[int], Any], *, timeout_s: float = 60.0) -> list[int]:
    """Run `act(rank)` in each; the exit codes. Fails if some go on waiting for one that is gone."""
    with free_port() as port:
        plan = Plan(("forked",), world, port=port)
        pids = {_fork(plan, rank, act): rank for rank in range(world)}
        codes: dict[int, int] = {}
        end = time.monotonic() + timeout_s
        while pids:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in pids:
                rank = pids.pop(pid)
                codes[rank] = os.waitstatus_to_exitcode(status)
                if codes[rank] < 0:
                    end = min(end, time.monotonic() + PATIENCE_S)
            elif time.monotonic() > end:
                for left in pids:
                    os.kill(left, signal.SIGKILL)
                    os.waitpid(left, 0)
                raise AssertionError(f"ranks {sorted(pids.values())} hang; the others ended with {codes}")
            else:
                time.sleep(0.01)
    return [codes[rank] for rank in range(world)]


def _fork(plan: Plan, rank: int, act: Callable[[int], Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        os.environ.update(variables(plan, rank, os.environ, plan.world))
        act(rank)
        code = 0
    except SystemExit as left:
        code = int(left.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
