import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.core.model import Spec
from gflow.errors import GflowError, UsageError
from gflow.options.job_options import JOB
from gflow.options.update import CHANGEABLE, FIXED, FIXED_IN_REDO, REDO
from gflow.store.port import address_of
from gflow.wire.requests import (
    COMMAND_BYTES,
    CancelRequest,
    GpusRequest,
    HoldRequest,
    JobRequest,
    Reader,
    References,
    ReleaseRequest,
    SubmitRequest,
    UpdateRequest,
    decode,
    read_options,
)
from gflow.wire.update import describe_options, describe_update


def packed(content):
    return base64.b64encode(content).decode()


def described(**fields):
    return Reader(address_of).read(JobRequest(**{"command": ["true"], "cwd": "/work"} | fields))[0]


# ---------------------------------------------------------------- decode


def test_a_submission_is_read():
    body = b'{"token":"t","jobs":[{"command":["true"],"cwd":"/work","options":{"gpus":2}}]}'
    assert decode(body, SubmitRequest) == SubmitRequest(
        token="t", jobs=[JobRequest(command=["true"], cwd="/work", options={"gpus": 2})]
    )


@pytest.mark.parametrize(
    ("body", "into"),
    [
        (b"", SubmitRequest),
        (b"{", SubmitRequest),
        (b"\xff", SubmitRequest),
        (b"null", SubmitRequest),
        (b"[]", SubmitRequest),
        (b"{}", SubmitRequest),
        (b'{"token":"t"}', SubmitRequest),
        (b'{"token":1,"jobs":[]}', SubmitRequest),
        (b'{"token":"t","jobs":{}}', SubmitRequest),
        (b'{"token":"t","jobs":[],"extra":1}', SubmitRequest),
        (b'{"token":"t","jobs":[{"command":["true"]}]}', SubmitRequest),
        (b'{"command":"true","cwd":"/"}', JobRequest),
        (b'{"command":[1],"cwd":"/"}', JobRequest),
        (b'{"command":["a"],"cwd":"/","gpus":1}', JobRequest),
        (b'{"command":["a\\ud800"],"cwd":"/"}', JobRequest),
        (b'{"command":["a"],"cwd":"/","umask":"022"}', JobRequest),
        (b'{"command":["a"],"cwd":"/","options":[]}', JobRequest),
        (b'{"command":["a"],"cwd":"/","options":{"gpus":' + b"9" * 5000 + b"}}", JobRequest),
        pytest.param(
            b'{"command":["a"],"cwd":"/","options":{"gpus":' + b"[" * 5000 + b"]" * 5000 + b"}}",
            JobRequest,
        ),
        (b'{"jobs":[42]}', CancelRequest),
        (b'{"jobs":"42"}', CancelRequest),
        (b'{"jobs":["42"],"now":"yes"}', CancelRequest),
        (b'{"jobs":[42]}', HoldRequest),
        (b"{}", HoldRequest),
        (b'{"jobs":["42"],"at":[]}', ReleaseRequest),
        (b'{"jobs":["42"],"options":{},"now":true}', UpdateRequest),
        (b"{}", GpusRequest),
        (b'{"allowed_indices":["0"]}', GpusRequest),
        (b'{"allowed_indices":[0.5]}', GpusRequest),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_body_that_is_no_request_is_refused(body, into):
    with pytest.raises(UsageError, match="the request is not valid"):
        decode(body, into)


# ---------------------------------------------------------------- describe


def test_a_plain_command_becomes_a_spec_with_the_defaults():
    job = described(command=["echo", "", "a b"])
    assert job.spec == Spec(command=("echo", "", "a b"), cwd="/work", default_name="echo")
    assert (job.references, job.blobs) == (References(), {})


def test_options_become_fields():
    spec = described(options={"gpus": 2, "time": "1:00:00", "name": "x", "priority": "7"}).spec
    assert (spec.gpus, spec.time_limit_s, spec.name, spec.priority) == (2, 3600, "x", 7)


def test_references_wait_to_be_resolved_and_are_not_in_the_spec():
    job = described(options={"depends-on": ["@", "17"]})
    assert job.references == References(all_of=("@", "17"))
    assert job.spec.depends_on == ()


def test_all_and_any_are_kept_apart():
    job = described(options={"depends-on": 1, "depends-on-any": "2,@~1"})
    assert job.references == References(all_of=("1",), any_of=("2", "@~1"))
    assert job.spec.parents == ()


@pytest.mark.parametrize(
    ("options", "array", "cap"),
    [
        ({"array": "1-10"}, "1-10", 0),
        ({"array": "1-10%4"}, "1-10", 4),
        ({"array": "1-10", "max-concurrent": 3}, "1-10", 3),
        ({"max-concurrent": 3}, "", 3),
    ],
    ids=str,
)
def test_the_cap_of_an_array_is_max_concurrent(options, array, cap):
    spec = described(options=options).spec
    assert (spec.array, spec.max_concurrent) == (array, cap)


def test_an_array_has_one_cap_and_that_is_bounded():
    assert described(options={"array": "1-10%4", "max-concurrent": 4}).spec.max_concurrent == 4
    with pytest.raises(UsageError, match="--array …%4 and --max-concurrent 2 are contradictory"):
        described(options={"array": "1-10%4", "max-concurrent": 2})
    with pytest.raises(UsageError, match="--max-concurrent must be at most"):
        described(options={"array": "1-10%4000000000"})


def test_sharing_needs_to_know_what_it_shares():
    spec = described(options={"shared": True, "gpus": 1, "gpu-memory": "20G"}).spec
    assert (spec.shared, spec.gpus, spec.gpu_memory_mib) == (True, 1, 20 * 1024)
    for missing in ({}, {"gpus": 1}, {"gpu-memory": "20G"}, {"gpus": 0, "gpu-memory": "20G"}):
        with pytest.raises(UsageError, match="--shared needs --gpus and --gpu-memory"):
            described(options={"shared": True} | missing)


def test_a_text_that_many_jobs_share_is_decoded_and_stored_once():
    reader = Reader(address_of)
    request = JobRequest(command=["true"], cwd="/", environ=packed(b"A=1"), script=packed(b"exit"))
    jobs = [reader.read(request)[0] for _ in range(3)]
    assert len({job.spec.environ for job in jobs}) == 1
    assert [len(job.blobs) for job in jobs] == [2, 0, 0]


def test_jobs_of_one_submission_do_not_mix_up_their_options():
    reader = Reader(address_of)
    asked = [{"gpus": 1}, {"gpus": "1", "depends-on": 7}, {"gpus": 1}, {"gpus": True}]
    jobs = [reader.read(JobRequest(command=["true"], cwd="/", options=options))[0] for options in asked[:3]]
    assert [job.references.all_of for job in jobs] == [(), ("7",), ()]
    assert [job.spec.gpus for job in jobs] == [1, 1, 1]
    with pytest.raises(UsageError, match="--gpus takes a whole number"):
        reader.read(JobRequest(command=["true"], cwd="/", options=asked[3]))


def test_environment_and_script_are_blobs_under_their_address():
    environ, script = b"A=1\0B=\xff", b"#!/bin/sh\nexit\n"
    job = described(
        command=["--lr", "1"], environ=packed(environ), script=packed(script), script_path="/work/a.sh"
    )
    assert job.blobs == {job.spec.environ: environ, job.spec.script: script}
    assert job.spec.environ == address_of(environ)
    assert (job.spec.command, job.spec.script_path) == (("--lr", "1"), "/work/a.sh")


def test_a_script_needs_no_arguments():
    assert described(command=[], script=packed(b"exit")).spec.command == ()


@pytest.mark.parametrize(("asked", "kept"), [(0o022, 0o022), (0o077, 0o077), (0o7777, 0o777), (0, 0)])
def test_umask_is_that_of_files(asked, kept):
    assert described(umask=asked).spec.umask == kept


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"command": []}, "there is no command to run"),
        ({"command": [""]}, "there is no command to run"),
        ({"command": ["", "a"]}, "there is no command to run"),
        ({"command": [], "script": ""}, "the script is empty"),
        ({"script": ""}, "the script is empty"),
        ({"command": ["a\0b"]}, "NUL"),
        ({"command": ["a", "\0"]}, "NUL"),
        ({"cwd": "/a\0b"}, "NUL"),
        ({"script": packed(b"x"), "script_path": "/a\0b"}, "NUL"),
        ({"command": ["a" * (COMMAND_BYTES + 1)]}, "longer than 1 MiB"),
        ({"command": ["a" * 1024] * 1025}, "longer than 1 MiB"),
        ({"cwd": ""}, "absolute path"),
        ({"cwd": "work"}, "absolute path"),
        ({"cwd": "./work"}, "absolute path"),
        ({"environ": "a"}, "environ is not base64"),
        ({"environ": "QQ==\n"}, "environ is not base64"),
        ({"script": "!!!!"}, "script is not base64"),
        pytest.param(
            {"environ": "\u00e9"},
            "environ is not base64",
        ),
        ({"options": {"gpu": 1}}, "unknown option 'gpu'"),
        ({"options": {"": 1}}, "unknown option ''"),
        ({"options": {"--gpus": 1}}, "unknown option '--gpus'"),
        ({"options": {"help": True}}, "unknown option 'help'"),
        ({"options": {"wait": True}}, "unknown option 'wait'"),
        ({"options": {"gpus": -1}}, "--gpus must be at least 0"),
        ({"options": {"gpus": 10**6}}, "--gpus must be at most"),
        ({"options": {"gpus": True}}, "--gpus takes a whole number"),
        ({"options": {"priority": 256}}, "--priority must be at most 255"),
        ({"options": {"time": -1}}, "--time cannot be negative"),
        ({"options": {"time": "1:99:99"}}, "--time does not understand"),
        ({"options": {"name": "a\nb"}}, "--name must be printable"),
        ({"options": {"depends-on": ["x"]}}, "--depends-on does not understand 'x'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_input_is_refused_in_one_sentence(fields, message):
    with pytest.raises(UsageError) as caught:
        described(**fields)
    assert message in caught.value.message
    assert caught.value.message.isprintable()


def test_the_limit_of_a_command_is_in_bytes():
    with pytest.raises(UsageError):
        described(command=["\U0001f680" * COMMAND_BYTES])


def test_a_command_of_exactly_the_limit_is_taken():
    assert described(command=["a" * COMMAND_BYTES]).spec.command


# ---------------------------------------------------------------- changes


def updated(**options):
    return describe_update(UpdateRequest(jobs=["1"], options=options), str, {"grace": 90})


@pytest.mark.parametrize(
    ("options", "fields", "references"),
    [
        ({"gpus": "2", "priority": 7}, {"gpus": 2, "priority": 7}, References()),
        ({"time": "1:00:00"}, {"time_limit_s": 3600}, References()),
        ({"no-auto-cancel": False}, {"no_auto_cancel": False}, References()),
        ({"depends-on": "@"}, {}, References(all_of=("@",))),
        ({"depends-on-any": [1, 2], "name": "x"}, {"name": "x"}, References(any_of=("1", "2"))),
    ],
    ids=str,
)
def test_an_update_becomes_fields_and_references(options, fields, references):
    change = updated(**options)
    assert (change.fields, change.references) == (fields, references)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "there is nothing to change"),
        ({"array": "1-3"}, "--array cannot be changed after submission"),
        ({"hold": True}, "--hold cannot be changed after submission"),
        ({"gpus": 1, "project": "x"}, "--project cannot be changed after submission"),
        ({"colour": 1}, "unknown option 'colour'"),
        ({"command": ["x"]}, "unknown option 'command'"),
        ({"gpus": -1}, "--gpus must be at least 0, not -1"),
    ],
    ids=str,
)
def test_an_update_that_cannot_be_is_refused(options, message):
    with pytest.raises(UsageError) as caught:
        updated(**options)
    assert caught.value.message == message


def test_null_options_return_to_configured_defaults():
    assert updated(grace=None, priority=None).fields == {"grace_s": 90, "priority": 10}


def test_options_of_update_match_the_daemon():
    everything = {option.name for option in JOB}
    assert {option.name for option in CHANGEABLE} == everything - FIXED
    assert {option.name for option in REDO} & everything == everything - FIXED_IN_REDO
    assert describe_options({"hold": True}, FIXED_IN_REDO, {}).fields == {"hold": True}


@pytest.mark.parametrize(
    ("at", "begin"), [(None, None), (1_800_000_000, 1_800_000_000.0), ("2026-12-24T08:00Z", 1_798_099_200.0)]
)
def test_a_release_may_name_a_time(at, begin):
    assert ReleaseRequest(jobs=["1"], at=at).begin_time() == begin


def test_a_release_at_no_time_is_refused():
    with pytest.raises(UsageError, match="--begin does not understand 'soon'"):
        ReleaseRequest(jobs=["1"], at="soon").begin_time()


# ---------------------------------------------------------------- options


@pytest.mark.parametrize("option", JOB, ids=lambda option: option.name)
def test_every_job_option_is_a_key_of_the_api_and_no_alias_is(option):
    with pytest.raises(UsageError) as caught:
        read_options({option.name: None})
    assert f"--{option.name} " in caught.value.message
    for alias in option.aliases:
        with pytest.raises(UsageError, match="unknown option"):
            read_options({alias: None})


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from([option.name for option in JOB]) | st.text()


@given(st.dictionaries(names, json_values, max_size=3))
def test_any_options_give_fields_of_the_spec_or_a_refusal(options):
    try:
        fields = read_options(options).fields
    except UsageError:
        return
    assert fields.keys() <= set(Spec.__struct_fields__)
    fields.pop("depends_on", None)
    fields.pop("depends_any", None)
    spec = Spec(command=("true",), cwd="/", **fields)
    assert msgspec.json.decode(msgspec.json.encode(spec), type=Spec) == spec


@given(st.lists(st.text(), max_size=3), st.text(), st.binary(), st.none() | st.binary(), st.integers())
def test_any_request_becomes_a_spec_or_a_refusal(command, cwd, environ, script, umask):
    request = JobRequest(
        command=command,
        cwd="/" + cwd,
        environ=packed(environ),
        script=None if script is None else packed(script),
        umask=umask,
    )
    try:
        job, _ = Reader(address_of).read(request)
    except GflowError as error:
        assert error.exit_code == 2
        return
    assert job.spec.command == tuple(command)
    assert sorted(job.blobs.values()) == sorted({blob for blob in (environ, script) if blob})


# ---------------------------------------------------------------- defaults of this daemon


@pytest.mark.parametrize(
    ("options", "overflow"),
    [
        ({}, "slurm"),
        ({"gpus": 2}, "slurm"),
        ({"overflow": "other"}, "other"),
        ({"overflow": "local"}, ""),
        ({"on": "slurm"}, ""),
        ({"array": "1-3"}, ""),
        ({"pty": True}, ""),
    ],
)
def test_a_default_target_for_what_finds_no_room_here(options, overflow):
    reader = Reader(address_of, defaults={"overflow": "slurm"})
    job, _ = reader.read(JobRequest(command=["true"], cwd="/work", options=options))
    assert job.spec.overflow == overflow
