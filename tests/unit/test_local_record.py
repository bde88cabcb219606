import os
from contextlib import ExitStack

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gflow.targets.local import run_record
from gflow.targets.local.run_record import Content, Identity
from gflow.targets.outcome import ShimEnd

SHIM = Identity("boot-a", 4026531836, 100, 5000)
JOB = Identity("boot-a", 4026531836, 101, 5001)
DONE = ShimEnd(0, None, "", 12, 3400)
NOTHING = Content(None, None, None)

numbers = st.integers(0, 2**63 - 1)
words = st.text(st.characters(codec="ascii", categories=["L", "N", "Pd"]), min_size=1)
identities = st.builds(Identity, words, numbers, numbers, numbers)
# Without line ends: the record has one line for each fact.
lines = st.text().filter(lambda text: "\n" not in text)
ends = st.builds(
    ShimEnd, st.none() | st.integers(0, 255), st.none() | st.integers(1, 64), lines, numbers, numbers
)


def written(*, shim=None, job=None, end=None):
    """The bytes of a record with these lines."""
    with ExitStack() as stack:
        fd = os.memfd_create("record")
        stack.callback(os.close, fd)
        if shim:
            run_record.write_identity(fd, "shim", shim)
        if job:
            run_record.write_identity(fd, "job", job)
        if end:
            run_record.write_end(fd, end)
        return os.pread(fd, 1 << 20, 0)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "1.1")


@pytest.fixture
def claimed(path):
    fd = run_record.claim(path)
    yield fd
    os.close(fd)


# ---------------------------------------------------------------- what a record says


@given(st.none() | identities, st.none() | identities, st.none() | ends)
def test_a_record_reads_back(shim, job, end):
    assert run_record.read(written(shim=shim, job=job, end=end)) == Content(shim, job, end)


@given(identities, identities, ends, st.data())
@example(SHIM, JOB, DONE, None)
def test_a_line_counts_only_if_it_is_whole(shim, job, end, data):
    whole = written(shim=shim, job=job, end=end)
    sizes = range(len(whole)) if data is None else [data.draw(st.integers(0, len(whole) - 1))]
    for size in sizes:
        facts = [shim, job, end][: whole[:size].count(b"\n")]
        assert run_record.read(whole[:size]) == Content(*facts, *[None] * (3 - len(facts)))


@pytest.mark.parametrize("text", [b"", b"\n", b"\n\n", b"shim", b"something else\n", b"\xff\xfe\n"])
def test_foreign_text_is_no_record(text):
    assert run_record.read(text) == NOTHING


@pytest.mark.parametrize(
    "text", [b"job boot-a 1\n", b"shim boot-a x y z\n", b"end 0\n", b"job boot-a 40end 0 - 1 2 \n"]
)
def test_a_broken_line_says_nothing(text):
    assert run_record.read(text) == NOTHING


@pytest.mark.parametrize(
    ("problem", "kept"),
    [
        ("no such\nfolder", "no such folder"),
        ("  spaces  ", "  spaces  "),
        ("\udcff", "?"),
        ("d\u00e9j\u00e0", "d\u00e9j\u00e0"),
    ],
    ids=ascii,
)
def test_a_problem_is_one_line_of_text(problem, kept):
    end = DONE._replace(code=None, problem=problem)
    assert run_record.read(written(end=end)).end == end._replace(problem=kept)


# ---------------------------------------------------------------- who has it


def test_an_attempt_is_claimed_once_only(path, claimed):
    assert claimed is not None
    assert run_record.claim(path) is None


def test_an_attempt_stays_taken_when_its_shim_is_gone(path):
    os.close(run_record.claim(path))
    assert run_record.claim(path) is None


def test_record_is_readable_by_its_owner_only(path, claimed):
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_record_does_not_leak_into_the_job(claimed):
    assert not os.get_inheritable(claimed)


def test_a_claim_holds_the_lock_until_it_is_closed(path):
    fd = run_record.claim(path)
    other = os.open(path, os.O_RDWR)
    assert not run_record.try_lock(other)
    os.close(fd)
    assert run_record.try_lock(other)
    os.close(other)


@pytest.mark.parametrize("daemon", ["unlinks", "locks"])
def test_a_shim_that_comes_late_leaves_the_attempt_alone(path, monkeypatch, daemon):
    """A daemon found the file between the shim's open and its lock."""

    def meddle(fd):
        os.unlink(path)
        return daemon == "unlinks"

    monkeypatch.setattr(run_record, "try_lock", meddle)
    open_before = set(os.listdir("/proc/self/fd"))
    assert run_record.claim(path) is None
    assert set(os.listdir("/proc/self/fd")) == open_before


def test_a_folder_that_is_not_there_is_an_error_and_not_a_claim(tmp_path):
    with pytest.raises(FileNotFoundError):
        run_record.claim(str(tmp_path / "gone" / "1.1"))


def test_lines_are_appended_wherever_the_descriptor_stands(path, claimed):
    run_record.write_identity(claimed, "shim", SHIM)
    os.lseek(claimed, 0, os.SEEK_SET)
    run_record.write_end(claimed, DONE)
    with open(path, "rb") as file:
        assert run_record.read(file.read()) == Content(SHIM, None, DONE)


# ---------------------------------------------------------------- processes


def test_my_own_identity_is_stable_and_names_me():
    me = run_record.identity_of(os.getpid())
    assert me == run_record.identity_of(os.getpid())
    assert me.pid == os.getpid()
    assert me.boot == run_record.boot_id() and me.namespace == run_record.namespace_of_pids()


def test_identity_of_the_parent_differs():
    assert run_record.identity_of(os.getppid()) != run_record.identity_of(os.getpid())


def test_a_process_that_never_was_has_no_identity():
    assert run_record.identity_of(2**22 + 1) is None


def test_engine_and_shim_call_a_lost_lease_the_same():
    """They cannot import each other: the shim needs the standard library alone."""
    from gflow.core import reasons
    from gflow.targets.local import gpu_leases

    assert reasons.parse(gpu_leases.LEASED) == reasons.LEASED
