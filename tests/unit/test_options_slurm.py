"""Slurm's dialect, and sweeps as people write them."""

from datetime import datetime

import pytest

from gflow.client.request_builder import merge_options
from gflow.errors import UsageError
from gflow.options.job_options import GBATCH, Option
from gflow.options.parse import parse
from gflow.options.slurm import check_local_words, multiply, sbatch, translate
from gflow.options.sweeps import parameters
from gflow.options.times import parse_time


def without_words(values):
    """What the options mean on one machine."""
    return {name: value for name, value in values.items() if name != "slurm"}


PARAM = Option("param", "params", "a sweep", metavar="X", many=True)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("--nice 0", {"priority": 10}),
        ("--nice=5", {"priority": 5}),
        ("--nice=-20", {"priority": 30}),
        ("--nice 1000", {"priority": 0}),
        ("--nice=-2147483645", {"priority": 255}),
        ("--gres gpu", {"gpus": 1}),
        ("--gres 2", {"gpus": 2}),
        ("--gres gpu:2", {"gpus": 2}),
        ("--gres gpu:a100:2", {"gpus": 2, "gpu-type": "a100"}),
        ("--gres=gpu:a100", {"gpus": 1, "gpu-type": "a100"}),
        ("--gpus-per-node a100:4", {"gpus": 4, "gpu-type": "a100"}),
        ("--dependency 17", {"depends-on": ("17",)}),
        ("--dependency @~1", {"depends-on": ("@~1",)}),
        ("--dependency afterok:17:18", {"depends-on": ("17", "18")}),
        ("--dependency afterok:17,afterok:42_3", {"depends-on": ("17", "42_3")}),
        ("--dependency afterok:1?afterok:2", {"depends-on-any": ("1", "2")}),
        ("--dependency afterany:1:2", {"depends-on-end": ("1", "2")}),
        ("--dependency afternotok:@", {"depends-on-failure": ("@",)}),
        ("--dependency after:1", {"depends-on-start": ("1",)}),
        ("--dependency singleton", {"singleton": True}),
        (
            "--dependency afterok:1,afterany:2:3,singleton",
            {"depends-on": ("1",), "depends-on-end": ("2", "3"), "singleton": True},
        ),
        ("-A lab", {"project": "lab"}),
        ("--exclusive", {"exclusive": True}),
        ("--shape n4_gpu1", {"nodes": 4, "gpus": 1}),
        ("--shape 2x8", {"nodes": 2, "gpus": 8}),
        ("--shape big --gpus 2", {"shape": "big", "gpus": 2}),
        ("--mail-type NONE", {}),
        ("--mail-type FAIL,TIME_LIMIT_80", {"notify-on": ("job_failed", "job_timeout", "job_cancelled")}),
        ("-J name --name other", {"name": "other"}),
        ("--mem 2G", {"memory": 2048}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_on_the_command_line(words, values):
    found, rest = parse([*words.split(), "true"], GBATCH, until_word=True)
    assert (without_words(found), rest) == (values, ["true"])


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("-N 2 -G 4", {"nodes": 2, "gpus": 4}),
        ("-G a100:2", {"gpus": 2, "gpu-type": "a100"}),
        ("--gpus=a100:2", {"gpus": 2, "gpu-type": "a100"}),
        ("-W -Q", {"wait": True, "quiet": True}),
        ("--no-requeue", {"requeue": False}),
        ("--open-mode=append", {}),
        ("--test-only", {"test-only": True}),
        ("--signal=B:USR1@60", {"signal": (-10, 60)}),
        ("--time=UNLIMITED", {"time": 0}),
        ("--kill-on-invalid-dep=no", {"no-auto-cancel": True}),
        ("--kill-on-invalid-dep=yes", {}),
        ("-q high -C a100", {"qos": "high", "constraint": "a100"}),
        ("--exclude=n1 --licenses x --contiguous", {}),
        ("-N 2-4 --mem=0", {"nodes": 2}),
        ("--clusters=a --verbose", {"ignored": "--clusters,--verbose"}),
    ],
)
def test_further_spellings_of_sbatch(words, values):
    found, rest = parse([*words.split(), "true"], GBATCH, until_word=True)
    assert (without_words(found), rest) == (values, ["true"])


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        ("--gpus 2 --nodes 2 --time 10 --cpus 4 --memory 1G --signal USR1@60 --exclusive", ()),
        ("--gpus a100:2", ("--gpus-per-node=a100:2",)),
        ("--gres gpu:2,tmp:1 --ntasks 4", ("--gres=gpu:2,tmp:1", "--ntasks=4")),
        ("--exclude=n1 --licenses x --contiguous", ("--exclude=n1", "--licenses=x", "--contiguous")),
        ("--time UNLIMITED --mem 0 --nodes 2-4", ("--time=UNLIMITED", "--mem=0", "--nodes=2-4")),
        ("--mem-per-cpu 4G --nice 5", ("--mem-per-cpu=4G", "--nice=5")),
        ("--exclusive=user --propagate=STACK", ("--exclusive=user", "--propagate=STACK")),
        ("--container-image=a/b#c --ntasks-per-gpu 1", ("--container-image=a/b#c", "--ntasks-per-gpu=1")),
        ("--on slurm --of-a-site=3", ("--of-a-site=3",)),
    ],
)
def test_words_that_a_cluster_gets_from_the_command_line(words, passed):
    assert parse([*words.split(), "true"], GBATCH, until_word=True)[0].get("slurm", ()) == passed


def test_an_option_that_neither_gflow_nor_sbatch_has():
    """Only sbatch knows the options of a site: without --on there is no cluster to ask."""
    for words in ("--of-a-site=3", "--on slurm --of-a-site 3"):
        with pytest.raises(UsageError, match="unknown option '--of-a-site'"):
            parse([*words.split(), "true"], GBATCH, until_word=True)


@pytest.mark.parametrize(
    ("line", "passed"),
    [
        ("--gpus=4 -N 2", ("--gpus=4", "--nodes=2")),
        ("-N 2-4 --mem=0 -t 0 --nice", ("--nodes=2-4", "--mem=0", "--time=0", "--nice")),
        ("-n 8 --tasks-per-node 4 -c 2", ("--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=2")),
        ("-x n1 -w n[2-3] -L a:2,b", ("--exclude=n1", "--nodelist=n[2-3]", "--licenses=a:2,b")),
        ("--signal=USR1@90 --switches=1@10", ("--signal=USR1@90", "--switches=1@10")),
        ("--time=1 --time=2", ("--time=2",)),
        ("--of-a-site 3 --its-flag", ("--of-a-site=3", "--its-flag")),
        ("-J x -o y -p z -A a -q q --array=1-2 --requeue -H --comment=c --exclusive -M m", ()),
    ],
)
def test_words_that_a_cluster_gets_from_a_script(line, passed):
    assert sbatch(f"#SBATCH {line}\n", "job.sh")[0].get("slurm", ()) == passed


SAID = [
    ("--gpus=4 --exclude=n1", {"gpus": 2}, ("--exclude=n1",)),
    ("--gpus=4 -N 2", {"nodes": 1}, ("--gpus=4", "--nodes=1")),
    ("--gres=tmp:1", {"gpus": 2}, ("--gres=tmp:1",)),
    ("--mem-per-cpu=1G --time=0", {"memory": 5, "time": 60}, ()),
    ("-x n1", {"slurm": ("--exclude=n2",)}, ("--exclude=n2",)),
    ("-n 4 -c 2", {"cpus": 8}, ("--ntasks=4",)),
]


@pytest.mark.parametrize(("line", "said", "passed"), SAID)
def test_what_is_said_to_gflow_replaces_words(line, said, passed):
    under = sbatch(f"#SBATCH {line}\n", "job.sh")[0]
    assert merge_options(under, said)["slurm"] == passed


def test_begin_in_words_of_slurm():
    now = datetime(2026, 11, 18, 10, 0).astimezone()
    assert parse_time("now+1hour", now) == now.timestamp() + 3600
    assert parse_time("now+2days", now) == now.timestamp() + 2 * 86400
    assert parse_time("tomorrow", now) == datetime(2026, 11, 19).astimezone().timestamp()
    assert parse_time("noon", now) == datetime(2026, 11, 18, 12).astimezone().timestamp()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("-p gpu", "-p is --priority here; Slurm's -p is --partition"),
        ("-d afterok:17", "-d is --depends-on here; Slurm's -d is --dependency"),
        ("--priority gpu", ""),
    ],
)
def test_a_letter_that_means_something_else_has_a_hint(words, hint):
    with pytest.raises(UsageError) as caught:
        parse([*words.split(), "true"], GBATCH, until_word=True)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    "words",
    ["--nice x", "--gres gpu:a:b:c", "--dependency aftercorr:1",
     "--dependency after:1+10", "--dependency after", "--dependency afterany:1?afterok:2",
     "--dependency afterok:1?afterok:2,afterok:3", "--mail-type SOMETIMES", "--gres gpu:a100:many",
     "--kill-on-invalid-dep maybe"],
)  # fmt: skip
def test_unknown_slurm_option_is_refused(words):
    with pytest.raises(UsageError):
        parse([*words.split(), "true"], GBATCH, until_word=True)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("-J x", {"name": "x"}),
        ("-Jx -c4", {"name": "x", "cpus": 4}),
        ("--job-name='two words'", {"name": "two words"}),
        ("-t 90", {"time": 5400}),
        ("-t 1-0", {"time": 86400}),
        ("--time=1-12:30", {"time": 86400 + 12 * 3600 + 1800}),
        ("--time=0", {"time": 0}),
        ("--time=UNLIMITED", {"time": 0}),
        ("--mem=0", {}),
        ("--mem=4G", {"memory": 4096}),
        ("-G a100:2", {"gpus": 2, "gpu-type": "a100"}),
        ("-a 1-10%2", {"array": "1-10%2"}),
        ("-o out_%N_%j.txt -e err", {"output": "out_%h_%j.txt", "error": "err"}),
        ("--signal=B:USR1@60", {"signal": (-10, 60)}),
        ("-N 1 -n 1 --ntasks-per-node=1", {"nodes": 1, "ntasks-per-node": 1}),
        ("-N 2-4 -p a,b -q high", {"nodes": 2, "partition": "a,b", "qos": "high"}),
        ("-H --requeue", {"hold": True, "requeue": True}),
        ("--comment='for #3' # a comment", {"comment": "for #3"}),
        ("-D /tmp --export=NONE", {"chdir": "/tmp", "export": "NONE"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_line_in_a_script(line, values):
    script = f"#!/bin/bash\n#SBATCH {line}\n"
    if "for #3" in line:  # Slurm's comments know no quotes
        script = script.replace("for #3", "for 3")
        values = {"comment": "for 3"}
    found, ignored = sbatch(script, "job.sh")
    assert (without_words(multiply(found)), ignored) == (values, [])


@pytest.mark.parametrize(
    ("line", "totals"),
    [
        ("-n 4 -c 2 --gpus-per-task=1", {"gpus": 4, "cpus": 8, "ntasks-per-node": 4, "gpus-per-task": 1}),
        ("-n 4 --gpus-per-task=a100:2", {"gpus": 8, "gpu-type": "a100", "cpus": 4}),
        ("-n 4 --gres=gpu:2 --gpus-per-task=1", {"gpus": 2, "cpus": 4}),
        ("--ntasks-per-node=2 --gpus-per-task=2", {"gpus": 4, "cpus": 2}),
        ("-N 2 -n 8 --gpus-per-task=1 -c 3", {"nodes": 2, "gpus": 4, "cpus": 12, "ntasks-per-node": 4}),
        ("--gpus-per-task=2", {"gpus": 2, "gpus-per-task": 2}),
        ("-c 6 --mem-per-cpu=4G", {"cpus": 6, "memory": 24576}),
        ("--mem-per-cpu=512M", {"memory": 512}),
        ("--gpus=4 --cpus-per-gpu=8 --mem-per-gpu=16G", {"gpus": 4, "cpus": 32, "memory": 65536}),
        ("--gpus=2 --mem-per-gpu=16G --mem=8G", {"gpus": 2, "memory": 8192}),
        ("-n 1", {"ntasks-per-node": 1}),
    ],
)
def test_quantities_of_each_task_are_multiplied(line, totals):
    found = without_words(multiply(sbatch(f"#SBATCH {line}\n", "job.sh")[0]))
    assert found | totals == found
    assert found.get("cpus") == totals.get("cpus")
    assert (
        without_words(
            multiply(
                parse(
                    [
                        *line.replace("-n ", "--ntasks ")
                        .replace("-N ", "--nodes ")
                        .replace("-c ", "--cpus-per-task ")
                        .split(),
                        "x",
                    ],
                    GBATCH,
                    until_word=True,
                )[0]
            )
        )
        == found
    )


def test_ignored_sbatch_option_is_named_once():
    script = "#SBATCH -n 4 --clusters=a\n\n# x\n#SBATCH --clusters=b --time=5\n#SBATCHED --mem=5\n"
    script += "echo\n#SBATCH -t 1\n"
    values, ignored = sbatch(script, "job.sh")
    assert (without_words(values), ignored) == ({"ntasks": 4, "time": 300}, ["--clusters"])


def test_resources_besides_gpus_are_for_clusters():
    for words in (("--gres=gpu:1,license:2",), ("--gres=license:1",)):
        with pytest.raises(UsageError, match="only GPUs on this machine, not 'license"):
            check_local_words(words)
    check_local_words(("--gres=gpu:a100:2", "--exclude=n1"))


def test_a_line_that_is_wrong_is_named():
    with pytest.raises(UsageError, match=r"job.sh, line 2: --time does not understand 'soon'"):
        sbatch("#!/bin/sh\n#SBATCH --time=soon\n", "job.sh")
    with pytest.raises(UsageError, match=r"job.sh, line 1: No closing quotation"):
        sbatch("#SBATCH --comment='x\n", "job.sh")
    with pytest.raises(UsageError, match=r"line 1: 'word' is not an option"):
        sbatch("#SBATCH word\n", "job.sh")


def test_begin_in_slurms_units():
    assert translate("begin", "now+60") == {"begin": "now+60s"}
    assert translate("begin", "now+2hours") == {"begin": "now+2h"}
    assert translate("begin", "16:00") == {"begin": "16:00"}


# ---------------------------------------------------------------- sweeps


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("lr=0.1,0.01", (("lr", ("0.1", "0.01")),)),
        ("lr = a , b ", (("lr", ("a", "b")),)),
        ("lr=1e-3", (("lr", ("1e-3",)),)),
        ("s=1:3", (("s", ("1", "2", "3")),)),
        ("s=0:1:0.25", (("s", ("0", "0.25", "0.5", "0.75", "1")),)),
        ("s=0:1:0.3", (("s", ("0", "0.3", "0.6", "0.9")),)),
        ("s=-2:2:2", (("s", ("-2", "0", "2")),)),
        ("s=5:5", (("s", ("5",)),)),
        ("s=10:1000:990", (("s", ("10", "1000")),)),
        ("url=http://x:80", (("url", ("http://x:80",)),)),
        ("s=1e999999999:1e999999999", (("s", ("1e999999999:1e999999999",)),)),
        ("s=1:2,3", (("s", ("1:2", "3")),)),
        ("e=a=b", (("e", ("a=b",)),)),
        ({"lr": [0.1, 2], "opt": "adam"}, (("lr", ("0.1", "2")), ("opt", ("adam",)))),
        ([["lr", ["1", "2"]], "s=3"], (("lr", ("1", "2")), ("s", ("3",)))),
    ],
    ids=str,
)
def test_sweep_parameters_are_parsed(value, found):
    assert parameters(value, PARAM) == found


@pytest.mark.parametrize(
    "value",
    ["lr", "=1", "l r=1", "1a=1", "é=1", "lr=", "lr=1,,2", "s=3:1", "s=1:3:0", "s=1:3:-1", "s=0:100000",
     "lr=1e-5:1e-3", "s=0:0.5", "lr=[0.1,0.2]", "lr=(1,2)",
     5, None, [5], {"a": {}}, {"a": [True]}, {"a": [None]}, "lr=\0"],
    ids=str,
)  # fmt: skip
def test_invalid_parameter_is_refused(value):
    with pytest.raises(UsageError, match="--param"):
        parameters(value, PARAM)
