"""gflow launch on several machines without Slurm: one launcher on each, here all of them on this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from gflow.ml.launch.ports import free_port

SCRIPT = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "node", os.environ["GROUP_RANK"], int(total))
dist.destroy_process_group()
sys.exit(9 if os.environ["RANK"] == "1" else 0)
"""


def test_ranks_of_two_hosts_meet_and_each_host_has_its_exit_code(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "hosts").write_text("127.0.0.1\n127.0.0.1\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("GFLOW_", "SLURM_"))}
    gflow = Path(sys.executable).with_name("gflow")
    environ["PATH"] = f"{gflow.parent}:{environ['PATH']}"
    with free_port() as port:
        launchers = [
            subprocess.Popen(
                [gflow, "launch", "--nodes-file", "hosts", "--node", str(node),
                 "--port", str(port), "--processes", "1", "--logs", f"logs-{node}", "train.py"],
                cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for node in (0, 1)
        ]  # fmt: skip
        said = [one.communicate(timeout=100) for one in launchers]
    assert [one.returncode for one in launchers] == [0, 9], said
    found = sorted(path.read_text().strip() for path in tmp_path.glob("logs-*/rank-*.log"))
    assert found == ["rank 0 of 2 node 0 3", "rank 1 of 2 node 1 3"], said
