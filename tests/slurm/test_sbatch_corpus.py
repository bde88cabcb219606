"""A corpus of scripts: sbatch and `gbatch --on slurm` ask Slurm for the same, by `scontrol show job`."""

from __future__ import annotations

import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness import Box, wait_until
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.slow
CORPUS = sorted((Path(__file__).parents[1] / "corpus" / "slurm").glob("*.sh"))
# What differs between two submissions of one script, and what gflow sets itself: name, output, requeueing.
OF_GFLOW = {
    "JobId", "ArrayJobId", "JobName", "Priority", "SubmitTime", "EligibleTime", "AccrueTime", "StartTime",
    "EndTime", "LastSchedEval", "Scheduler", "Reason", "Requeue", "Comment", "Command", "StdErr", "StdIn",
    "StdOut", "AllocNode:Sid", "SchedNodeList",
}  # fmt: skip


def fields_of(cluster: Cluster) -> dict[str, dict[str, str]]:
    """The fields of all jobs by their ids; of an array as a whole."""
    found = {}
    for line in cluster.call("scontrol", "-o", "show", "job").splitlines():
        # Values may hold spaces: a field begins with a word and `=` after a space.
        fields = dict(re.findall(r"(\S+?)=(.*?)(?= \S+?=|\s*$)", line))
        found[fields["JobId"]] = {k: v.strip() for k, v in fields.items() if k not in OF_GFLOW}
    return found


def submit_with_sbatch(cluster: Cluster, path: Path, folder: Path) -> str:
    words = ["sbatch", "--parsable", str(path)]
    done = subprocess.run(words, env=cluster.env, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{path.name}: {done.stderr}"
    return done.stdout.strip()


def differences(cluster: Cluster, pairs: dict[str, tuple[str, str]]) -> dict[str, dict[str, object]]:
    """The fields that differ between two jobs of each script."""
    found, wrong = fields_of(cluster), {}
    for name, (theirs, ours) in pairs.items():
        both = {field: (found[theirs].get(field), found[ours].get(field)) for field in found[theirs].keys()
                | found[ours].keys()}  # fmt: skip
        if differing := {field: pair for field, pair in both.items() if pair[0] != pair[1]}:
            wrong[name] = differing
    return wrong


def test_scripts_ask_for_the_same_with_sbatch_and_gbatch(slurm: Box, cluster: Cluster) -> None:
    assert len(CORPUS) >= 30
    # Nothing of the corpus can start.
    subprocess.run(["sbatch", "-N4", "--exclusive", "--wrap=sleep 600"], env=cluster.env, cwd=slurm.work)
    wait_until(lambda: not cluster.idle_nodes(), 20, "busy nodes")
    theirs = {path.name: submit_with_sbatch(cluster, path, slurm.work) for path in CORPUS}
    numbers = {path.name: slurm.submit("--on", "slurm", str(path)) for path in CORPUS}
    wait_until(lambda: all(slurm.job(number)["target_id"] for number in numbers.values()), 60, "all in Slurm")
    ids = {name: slurm.job(number)["target_id"].partition("_")[0] for name, number in numbers.items()}
    pairs = {name: (theirs[name], ids[name]) for name in theirs}
    # Slurm estimates the number of nodes of a waiting job when it has looked at it.
    with suppress(AssertionError):
        wait_until(lambda: not differences(cluster, pairs), 20, "equal jobs")
    assert differences(cluster, pairs) == {}
    cluster.call("scancel", "--user", "root")
