"""Sizes and limits of a cluster, parsed from Slurm's output, and the advice made of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.targets.slurm.commands import cluster_info
from gflow.targets.slurm.commands.cluster_info import (
    Limits,
    Size,
    parse_limits,
    parse_owner,
    parse_partitions,
    parse_qos,
    parse_sizes,
)
from gflow.targets.slurm.commands.slurm_cli import advise

# From 20.11 on; a plus where nodes differ, sockets in brackets, other resources beside GPUs.
SINFO = """main*|4|8|16000|(null)|gpu:a100:4
a100|12|128+|512000+|a100,ib|gpu:a100:4(S:0-1),nvme:1
mixed|2|32|128000|v100|gpu:v100:2(S:0),gpu:t4:1(S:1)
cpu|1|64|256000|(null)|(null)
slurm_load_partitions: Unable to contact slurm controller
"""
ASSOC = """|lab|normal|gres/gpu=2||||1-00:00:00||
ann|lab|normal,high|||10|cpu=64,gres/gpu=4||3|20
"""


def test_partition_sizes_are_parsed():
    main, a100, mixed, cpu = parse_sizes(SINFO)
    assert main == Size("main", True, 4, 8, 16000, (), 4, ("a100",))
    assert a100 == Size("a100", False, 12, 128, 512000, ("a100", "ib"), 4, ("a100",))
    assert (mixed.gpus, mixed.gpu_types) == (3, ("v100", "t4"))
    assert (cpu.gpus, cpu.gpu_types) == (0, ())


NODES = [
    ("main*", "mix", "7-00:00:00", "8", "16000", "gpu:a100:4(S:0)", "gpu:a100:3(IDX:0-2)"),
    ("main*", "idle", "7-00:00:00", "16", "15000", "gpu:a100:4(S:0)", "gpu:a100:0(IDX:N/A)"),
    ("main*", "idle*", "7-00:00:00", "8", "16000", "gpu:v100:2", "gpu:v100:0(IDX:N/A)"),
    ("cpu", "drain", "infinite", "64", "256000", "(null)", "gpu:0"),
    ("slurm_load_partitions: Unable to contact", "", "", "", "", "", ""),
]


def test_partitions_are_parsed():
    widths = cluster_info.NODE_FIELDS.values()
    lines = ["".join(map(str.ljust, fields, widths)) for fields in NODES]
    main, cpu = parse_partitions("\n".join(lines))
    assert (main.name, main.is_default, main.time_limit) == ("main", True, "7-00:00:00")
    assert (main.nodes, main.idle, main.unusable) == (3, 1, 1)
    assert (main.cpus, main.memory_mib) == (8, 15000)
    assert (main.gpus, main.gpus_free, main.gpu_types) == (10, 5, ("a100", "v100"))
    assert cpu[:6] == ("cpu", False, "", 1, 0, 1) and cpu[8:] == (0, 0, ())


def test_association_limits_are_parsed():
    all_users, ann = parse_limits(ASSOC)
    assert all_users == Limits(
        "",
        "lab",
        ("normal",),
        ("all its jobs together have at most gres/gpu=2", "one job takes at most 1-00:00:00"),
    )
    assert ann.qos == ("normal", "high")
    assert ann.caps == (
        "at most 10 of its jobs wait and run",
        "one job has at most cpu=64,gres/gpu=4",
        "at most 3 of your jobs run at once",
        "at most 20 of your jobs wait and run",
    )
    fields = ["normal"] + [""] * (len(cluster_info.QOS_CAPS) - 4) + ["gres/gpu=8", "4", "", ""]
    assert parse_qos("|".join(fields) + "\n") == (
        "your jobs together have at most gres/gpu=8",
        "at most 4 of your jobs run at once",
    )


def test_account_and_qos_of_a_job():
    text = (
        "JobId=1 JobName=Account=x UserId=ann(7) GroupId=g(7) Nice=0 Account=lab QOS=normal JobState=PENDING"
    )
    assert parse_owner(text) == ("lab", "normal")
    assert parse_owner("UserId=ann(7) Account=(null) QOS=(null)") == ("", "")


@given(st.text())
def test_any_text_can_be_read(text):
    parse_sizes(text)
    parse_limits(text)
    parse_qos(text)
    parse_owner(text)


class FakeSlurm:
    def sizes(self):
        return parse_sizes(SINFO)

    def limits(self, account=""):
        return parse_limits(ASSOC)


@pytest.mark.parametrize(
    ("complaint", "names", "hint"),
    [
        ("Invalid partition name specified", {"partition": "a10"}, "did you mean a100?"),
        (
            "Invalid partition name specified",
            {"partition": "zz"},
            "there are the partitions main, a100, mixed, cpu",
        ),
        (
            "Invalid account or account/partition combination specified",
            {"account": "lba"},
            "did you mean lab?",
        ),
        ("Invalid qos specification", {"qos": "zz"}, "there are the qualities of service normal, high"),
        ("Invalid feature specification", {"constraint": "v10"}, "did you mean v100?"),
        (
            "Requested node configuration is not available",
            {},
            "main has 4 nodes, each with 4 GPUs (a100), 8 CPUs and 15 GiB of memory",
        ),
        (
            "Requested node configuration is not available",
            {"partition": "cpu"},
            "cpu has 1 node, each with 0 GPUs, 64 CPUs and 250 GiB of memory",
        ),
        ("Invalid license specification", {}, ""),
        ("Job violates accounting/QOS policy (job submit limit, …)", {"account": "lab"}, ""),
    ],
)
def test_submission_error_advice(complaint, names, hint):
    usual = dict.fromkeys(("partition", "account", "qos", "constraint"), "")
    assert advise(FakeSlurm(), complaint, **usual | names) == hint
