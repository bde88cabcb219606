"""Every option of a job is in its JSON and on its page."""

import msgspec
import pytest

from gflow.core.model import PARENT_FIELDS, Moment, Spec
from gflow.options.job_options import JOB
from gflow.text.job_page import job_page
from gflow.wire.answers.jobs import asked_view, job_view
from gflow.wire.encoding import encode
from gflow.wire.requests import JobRequest, Reader, read_options

from .builders import NOON, job
from .test_options_values import WRITTEN

# A value of each that is not its default: of its kind, unless it is here. And options that it needs.
GIVEN = {option.name: WRITTEN[option.kind] for option in JOB} | {
    "gpus": 2, "shared": True, "gpu-memory": 20480, "gpu-type": "A100", "cpus": 3, "memory": 1024,
    "allow-unsatisfiable": True, "time": 7200, "name": "train", "priority": 50, "depends-on": "7,9_3",
    "depends-on-any": "8", "depends-on-end": "7", "depends-on-failure": "8", "depends-on-start": "9_3",
    "no-auto-cancel": True, "begin": 1_800_000_000.0, "hold": True, "array": "0-9:3",
    "max-concurrent": 4, "max-retries": 3, "retry-on": "oom,exit:75", "retry-delay": 60, "requeue": True,
    "grace": 5, "signal": "USR1@90", "output": "out-%j.txt", "error": "err-%j.txt", "project": "p",
    "comment": "a note", "venv": "/venv", "conda-env": "/conda", "notify-email": "ann@example.org",
    "notify-on": "job_failed", "param": "lr=0.1", "stop-if-idle": 1800, "fit": 21000,
    "pty": True, "preemptible": True, "resume-args": "--ckpt {latest}",
    "on": "gilbreth", "nodes": 2, "partition": "a100", "qos": "high", "constraint": "h100&ib",
    "reservation": "course", "exclusive": True, "race": ["n1_gpu4", "n4_gpu1"],
    "slurm": ["--licenses=matlab"], "shape": "big", "overflow": "gilbreth", "overflow-after": 60,
    "effective-batch": 256,
}  # fmt: skip
NEEDED = {
    option.name: {need: GIVEN[need] for need in (needs.split(" or ")[0] for needs in option.requires)}
    for option in JOB
}
KEYS = {"7": 7 << 20, "9_3": (9 << 20) + 4, "8": 8 << 20}


def spec_of(options):
    described = Reader(lambda content: "", shapes={"big": {"nodes": 1}})
    (one,) = described.read_all(JobRequest(command=["true"], cwd="/work", options=options))
    named = zip(PARENT_FIELDS, one.references, strict=True)
    parents = {field: tuple(KEYS[text] for text in texts) for field, texts in named}
    return msgspec.structs.replace(one.spec, **parents)


def test_every_option_is_tried():
    assert GIVEN.keys() == {option.name for option in JOB}


@pytest.mark.parametrize("name", GIVEN)
def test_asked_options_in_json_read_back_the_same(name):
    options = {name: GIVEN[name]} | NEEDED[name]
    spec = spec_of(options)
    asked = msgspec.json.decode(encode(asked_view(spec)))
    assert asked.keys() == options.keys()
    again = spec_of(asked)
    assert again == spec
    assert read_options(asked)


@pytest.mark.parametrize("name", GIVEN)
def test_requested_option_is_on_the_page(name):
    needed = NEEDED[name] | ({"max-retries": 1} if name == "retry-delay" else {})
    if name in {option.name for option in JOB if option.only_on == "cluster"}:  # ignored on this machine
        needed = needed | {"on": "slurm"}
    fields = Spec.__struct_fields__

    def page(options):
        spec = spec_of(options)
        return job_page(
            job(1, **{field: getattr(spec, field) for field in fields}), None, Moment(NOON, 0.0), ""
        )

    assert page(needed | {name: GIVEN[name]}) != page(needed)


def test_a_job_without_options_asked_for_nothing():
    assert job_view(job(1, retry_delay_s=10)).asked == {}
