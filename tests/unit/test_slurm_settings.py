"""Clusters in gflow.toml: what is misspelt is refused in one sentence, with what was probably meant."""

import pytest

from gflow.config.load import load
from gflow.daemon.settings import _clusters
from gflow.errors import UsageError
from gflow.targets.slurm.settings import Cluster, clusters_of


def test_a_cluster():
    found = clusters_of(
        {"gilbreth": {"type": "slurm", "account": "lusu", "sbatch": ["--mail-type=FAIL"]}}, "f"
    )
    assert found["gilbreth"] == Cluster(account="lusu", sbatch=("--mail-type=FAIL",))
    assert found["slurm"] == Cluster()


@pytest.mark.parametrize(
    ("table", "said", "hint"),
    [
        ({"type": "slrum"}, "f: targets.x needs type = \"slurm\", not 'slrum'", "the only type of target"),
        ({"account": "a"}, 'f: targets.x needs type = "slurm"', "the only type of target"),
        (
            {"type": "slurm", "acount": "a"},
            "f: unknown setting 'targets.x.acount'",
            "did you mean targets.x.account?",
        ),
        ({"type": "slurm", "poll_secs": "x"}, "f: targets.x.poll_secs takes a whole number", ""),
        (
            {"type": "slurm", "sbatch": ["--comment=site"]},
            "f: targets.x.sbatch cannot set --comment: gflow finds its jobs by it",
            "gbatch --comment TEXT is shown by gjob show",
        ),
        (
            {"type": "slurm", "container": "--nv"},
            "f: targets.x.container is an image, not an option",
            "container_options",
        ),
        (
            {"type": "slurm", "command_timeout_secs": 0},
            "f: targets.x.command_timeout_secs is at least 1",
            "",
        ),
        ({"type": "slurm", "sbatch": "--x"}, "f: targets.x.sbatch takes a list of texts", ""),
        (
            {"type": "slurm", "host": "-oProxyCommand=x"},
            "f: targets.x.host is '-oProxyCommand=x', which is not a host",
            "as in: ssh HOST",
        ),
        (
            {"type": "slurm", "chdir": "/scratch"},
            "f: targets.x.chdir is for clusters with a host",
            "run gbatch in that folder, or give it --chdir",
        ),
        (
            {"type": "slurm", "host": "h", "folder": "x"},
            "f: targets.x.folder is a path on h: it begins with / or ~/",
            "",
        ),
        (
            {"type": "slurm", "host": "h", "slurm_conf": "/etc/slurm/slurm.conf"},
            "f: targets.x.slurm_conf is the path of a file on this machine, without a host",
            "",
        ),
        ({"type": "slurm", "sbatch": [1]}, "f: targets.x.sbatch takes a list of texts", ""),
        ({"type": "slurm", "account": 7}, "f: targets.x.account takes text", ""),
    ],
    ids=str,
)
def test_misspelt_cluster_setting_is_refused(table, said, hint):
    with pytest.raises(UsageError) as refused:
        clusters_of({"x": table}, "f")
    assert refused.value.message == said
    assert hint in refused.value.hint


def test_a_name_that_is_taken():
    with pytest.raises(UsageError, match="local is this machine"):
        clusters_of({"local": {"type": "slurm"}}, "f")


def test_a_default_that_is_not_there(tmp_path):
    path = tmp_path / "gflow.toml"
    path.write_text('default_target = "gilbert"\n[targets.gilbreth]\ntype = "slurm"\n')
    with pytest.raises(UsageError) as refused:
        _clusters(load({}, {}, str(path), str(tmp_path / "none")))
    assert refused.value.hint == "did you mean gilbreth?"
