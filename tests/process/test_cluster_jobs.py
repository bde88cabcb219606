"""gqueue --target: the Slurm jobs of a person, also those that gflow did not submit."""

from __future__ import annotations

import json

from tests.harness import Box, wait_until

SQUEUE = r"""#!/bin/sh
[ ! -e '{folder}/down' ] || {{ echo 'squeue: error: slurm_receive_msg: Socket timed out' >&2; exit 1; }}
case "$*" in *states=all*) exit 0 ;; esac
echo x >>'{folder}/calls'
echo '812|RUNNING|1:05|1:00:00|1|main|gres:gpu:2|node3|(null)|bash'
echo '813|PENDING|0:00|UNLIMITED|2|main|N/A|(Resources)|gflow:ffffffffff:7.1:0|sweep'
cat '{folder}/ours' 2>/dev/null
exit 0
"""


def test_other_jobs_on_a_cluster_are_listed_below_those_of_gflow(box: Box) -> None:
    folder = box.root / "slurm"
    folder.mkdir()
    for name in ("sbatch", "scancel", "sinfo", "scontrol", "sacct"):
        (folder / name).write_text(f"#!/bin/sh\n{'echo 900' if name == 'sbatch' else 'exit 0'}\n")
    (folder / "squeue").write_text(SQUEUE.format(folder=folder))
    for path in folder.iterdir():
        path.chmod(0o755)
    box.up("--simulate-gpus", "1x80G", env={"PATH": f"{folder}:{box.env['PATH']}"})
    number = box.submit("--on", "slurm", "--name", "mine", "true")
    wait_until(lambda: box.job(number)["target_id"] == "900", 20, "its number in Slurm")
    (folder / "ours").write_text("900|PENDING|0:00|1:00|1|main|N/A|(Priority)|rewritten|mine\n")

    page = box.ok("gqueue", "--target", "slurm")
    first, other = page.split("\n\n")
    assert "mine" in first and "mine" not in other
    lines = other.splitlines()
    assert lines[0].startswith("Other Slurm jobs of ") and lines[0].endswith("which gflow does not change:")
    assert lines[2].split() == ["812", "bash", "RUNNING", "1:05", "1", "node3", "sbatch"]
    assert lines[3].split()[-3:] == ["(Resources)", "another", "gflow"]
    assert len((folder / "calls").read_text().split()) == 1

    data = json.loads(box.ok("gqueue", "--target", "slurm,local", "--json"))
    assert [job["id"] for job in data["jobs"]] == [number]
    assert [(job["id"], job["submitted_by"], job["job"]) for job in data["others"]] == [
        ("812", "slurm", None), ("813", "other_gflow", None),
    ]  # fmt: skip
    assert data["others"][0]["target"] == "slurm" and data["others"][0]["node_list"] == "node3"
    status, everything = box.api("GET", "/targets/slurm/jobs")
    assert status == 200 and everything["jobs"][2]["submitted_by"] == "gflow"
    assert everything["jobs"][2]["job"] == number

    # Chosen jobs and columns are those of gflow alone, as is this machine.
    for words in (["-N", "mine"], ["-f", "JOBID"], ["--tree"], ["-o", "csv"]):
        assert "bash" not in box.ok("gqueue", "--target", "slurm", *words)
    assert "others" not in json.loads(box.ok("gqueue", "--target", "local", "--json"))

    typo = box.run("gqueue", "--target", "slrum")
    assert (typo.returncode, typo.stderr) == (2, "gqueue: unknown target 'slrum'\ndid you mean slurm?\n")
    assert box.run("gqueue", "--all", "--target", "removed").returncode == 1  # its past jobs may be here
    assert box.api("GET", "/targets/local/jobs")[0] == 409
    assert box.api("GET", "/targets/slrum/jobs")[0] == 400

    (folder / "down").touch()
    away = box.run("gqueue", "--target", "slurm")
    assert away.returncode == 1 and "mine" in away.stdout
    wanted = (
        "gqueue: slurm does not answer: slurm_receive_msg: Socket timed out; its other jobs are not shown"
    )
    assert away.stderr.strip() == wanted
