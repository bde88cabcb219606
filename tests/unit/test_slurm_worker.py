"""The Slurm worker with a controller that forgets, answers late or not at all, and starts jobs unseen."""

from __future__ import annotations

import os

import pytest

from gflow.core.events import RemoteStatus
from gflow.core.model import ArrayProgress, RemoteState
from gflow.core.reasons import WITHDRAWN, parse
from gflow.core.task_set import parse_tasks
from gflow.targets.port import End, Ended, Launch, Run
from gflow.targets.slurm.background_calls import InlineCalls
from gflow.targets.slurm.commands.command_runner import CommandResult
from gflow.targets.slurm.commands.slurm_cli import Verdict
from gflow.targets.slurm.settings import Cluster
from gflow.targets.slurm.shared_folder import SharedFolder
from gflow.targets.slurm.tracker import Tracker
from gflow.targets.slurm.worker import SlurmWorker

from .builders import job

DOWN = CommandResult(False, "", "Unable to contact slurm controller", True)


class FakeSlurm:
    """Takes submissions and shows them; what goes wrong is set by the test."""

    def __init__(self) -> None:
        self.comments: dict[str, str] = {}
        self.states: dict[str, str] = {}
        self.cancelled: list[str] = []
        self.submitted = 0
        self.asked = 0
        self.is_down = False
        self.loses_answer = False
        self.refuses = ""
        # What a site makes of comments; and the tags in the batch scripts, as Slurm keeps them.
        self.rewrites = ""
        self.tags: dict[str, str] = {}
        # Reasons and nice values of jobs, and when a job with so many nodes would start.
        self.reasons: dict[str, str] = {}
        self.nice: dict[str, int] = {}
        self.starts: dict[str, str] = {}

    def submit(self, script, environ, cwd, umask, *, test=False):
        if self.is_down:
            return DOWN
        if test:
            nodes = script.partition("--nodes=")[2].partition("\n")[0]
            return CommandResult(True, self.starts.get(nodes, ""))
        if self.refuses:
            return CommandResult(False, "", self.refuses)
        self.submitted += 1
        number = str(100 + self.submitted)
        comment = script.partition("--comment=")[2].partition("\n")[0]
        self.comments[number], self.states[number] = self.rewrites or comment, "PENDING"
        self.tags[number] = comment
        return DOWN if self.loses_answer else CommandResult(True, number)

    def queue(self):
        self.asked += 1
        if self.is_down:
            return DOWN
        why = {number: self.reasons.get(number, "Priority") for number in self.comments}
        lines = [
            f"{number}|{number}|{number}|N/A|{self.states[number]}|{why[number]}|n1|{comment}"
            for number, comment in self.comments.items()
        ]
        return CommandResult(True, "\n".join(lines))

    def cancel(self, ids, signal="", *, to_batch_only=False, only_pending=False):
        self.cancelled += [f"{signal}:{id}" if signal else id for id in ids]
        for id in ids:
            if not signal and self.states.get(id) == "PENDING" and not self.is_down:
                self.states[id] = "CANCELLED"
        return DOWN if self.is_down else CommandResult(True, "")

    def verdict(self, id, tag):
        return None

    def nice_of(self, id):
        return self.nice.get(id, 0)

    def set_nice(self, id, nice):
        self.nice[id] = nice
        return CommandResult(True, "")

    def has_tag(self, id, tag):
        return self.tags.get(id) == tag


class SlowCalls:
    """Calls return when the test says so; by the name of the command."""

    def __init__(self) -> None:
        self.pending: list[tuple[object, object]] = []

    def start(self, call, then, otherwise) -> None:
        self.pending.append((call, then))

    def names(self) -> list[str]:
        return [_name_of(call) for call, _ in self.pending]

    def finish(self, name: str) -> None:
        """Let the first pending call of this command return."""
        call, then = self.pending.pop(self.names().index(name))
        then(call())


def _name_of(call) -> str:
    names = (call.__name__, *call.__code__.co_names)
    return next(name for name in names if name in ("queue", "submit", "cancel", "verdict"))


class World:
    """A worker, its shared folder, and a clock that the test moves."""

    def __init__(self, folder) -> None:
        self.now = 1000.0
        self.folder, self.slurm = SharedFolder(folder), FakeSlurm()
        self.statuses: list[RemoteStatus] = []
        self.ends: list[Ended] = []
        self.worker = self.new_worker()

    def new_worker(self, calls=None, **settings) -> SlurmWorker:
        told = self.statuses.extend, self.ends.append
        calls = calls or InlineCalls()
        return SlurmWorker(
            Tracker(Cluster(**settings), self.folder, self.slurm, *told, calls, lambda: self.now)
        )

    def turns(self, count: int = 1, seconds: float = 2.0) -> None:
        for _ in range(count):
            self.worker.turn()
            self.now += seconds

    def begin(self, name: str, id: str, bid: int = 0) -> None:
        """The job on its node renames its claim token."""
        os.rename(self.folder.path(name, "ticket"), self.folder.path(name, f"claim.{bid}.{id}"))


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def launch(number=1, *, attempt=1, **fields) -> Launch:
    made = job(number, attempt=attempt, target="slurm", on="slurm", cwd="/", **fields)
    if made.spec.array:
        made.progress = ArrayProgress(parse_tasks(made.spec.array))
    log = "/tmp/gflow-test.log"
    return Launch(made, None, b"PATH=/bin", b"GFLOW_ATTEMPT=1\0", log, log, 0, (), None)


RUN = Run(job(1).key, 1)


def test_job_from_submission_to_end(world):
    world.worker.start(launch())
    world.turns(2)
    assert (world.slurm.submitted, world.statuses[-1].reason) == (
        1,
        "Priority: others are before it in Slurm's queue",
    )
    world.begin("1.1", "101")
    world.slurm.states["101"] = "RUNNING"
    world.turns(2)
    assert (world.statuses[-1].running, world.statuses[-1].nodes) == (True, "n1")
    world.folder.put("1.1", "exit", b"3 \n")
    world.turns()
    assert world.ends == [Ended(RUN, End(3))]
    assert world.slurm.cancelled == []


@pytest.mark.parametrize(
    ("state", "end"),
    [
        ("TIMEOUT", End(143, None, parse("TimeLimit"))),
        ("FAILED", End(143)),
        ("PREEMPTED", End(143, None, parse("Preempted"))),
    ],
)
def test_command_ended_by_signal_before_the_batch_shell_has_state_of_slurm(world, state, end):
    """Slurm signals the command first, so its record may lack the word that the shell was told."""
    world.worker.start(launch())
    world.turns(2)
    world.begin("1.1", "101")
    world.slurm.states["101"] = "COMPLETING"
    world.turns(2)
    world.folder.put("1.1", "exit", b"143 \n")
    world.turns(4)
    assert world.ends == []
    world.slurm.states["101"] = state
    world.turns(2)
    assert world.ends == [Ended(RUN, end)]


def test_a_lost_answer_makes_no_second_job(world):
    world.slurm.loses_answer = True
    world.worker.start(launch())
    world.turns(10)
    assert world.slurm.submitted == 1


def test_new_worker_finds_submitted_job(world):
    world.worker.start(launch())
    world.turns(2)
    world.worker = world.new_worker()
    world.worker.start(launch())
    world.turns(4)
    assert world.slurm.submitted == 1


def test_a_controller_that_is_down_is_asked_again_and_again(world):
    world.slurm.is_down = True
    world.worker.start(launch())
    world.turns(5)
    assert world.statuses[-1].reason.startswith("SlurmUnreachable")
    assert world.ends == []
    link = world.worker.connection
    assert (link.is_down, link.answered_at, link.error) == (True, 0, DOWN.error)
    world.slurm.is_down = False
    world.turns(40)
    assert world.slurm.submitted == 1
    link = world.worker.connection
    assert not link.is_down and link.answered_at and not link.error


def test_forgotten_job_is_resubmitted_first_copy_cannot_run(world):
    world.worker.start(launch())
    world.turns(2)
    forgotten = world.slurm.comments.pop("101")
    world.turns(20)
    assert world.slurm.submitted == 2
    world.slurm.comments["101"] = forgotten  # it was there all the time
    world.begin("1.1", "102")
    with pytest.raises(FileNotFoundError):
        world.begin("1.1", "101")


def test_begun_job_is_never_resubmitted(world):
    world.worker.start(launch())
    world.turns(2)
    world.begin("1.1", "101")
    del world.slurm.comments["101"]
    world.turns(40)
    assert world.slurm.submitted == 1
    assert world.statuses[-1].reason.startswith("Unknown")
    assert world.ends == [], "unknown is not failed"
    world.turns(1, 400)
    world.turns(2)
    assert world.ends == [Ended(RUN, End(None, None, parse("Lost")))]


def test_a_refusal_is_the_end(world):
    world.slurm.refuses = "sbatch: error: Batch job submission failed: Invalid qos specification"
    world.worker.start(launch())
    world.turns()
    assert world.ends == [Ended(RUN, End(None, None, parse("StartFailed: Slurm: Invalid qos specification")))]


def test_job_that_no_script_can_describe_ends(world):
    world.worker.start(launch(name="two\nlines"))
    world.turns()
    ((run, end),) = world.ends
    assert run == RUN and "StartFailed: 'two\\nlines' has a line break" in str(end.problem)
    assert world.slurm.submitted == 0


def test_refusal_of_returning_controller_is_not_final(world):
    world.slurm.is_down = True
    world.worker.start(launch())
    world.turns(2)
    world.slurm.is_down, world.slurm.refuses = False, "Requested node configuration is not available"
    world.turns(5)
    assert world.ends == []
    world.slurm.refuses = ""
    world.turns(10)
    assert world.slurm.submitted == 1


def test_cancelled_before_it_began(world):
    world.worker.start(launch())
    world.turns(2)
    world.worker.stop(RUN, now=False)
    assert world.ends == [Ended(RUN, End(None, None, WITHDRAWN))]
    with pytest.raises(FileNotFoundError):
        world.begin("1.1", "101")
    world.turns(2)
    assert "101" in world.slurm.cancelled


def test_cancelled_while_the_controller_is_down(world):
    """It is certain at once that it never begins; Slurm is told when it can be."""
    world.worker.start(launch())
    world.turns(2)
    world.slurm.is_down = True
    world.worker.stop(RUN, now=False)
    assert world.ends == [Ended(RUN, End(None, None, WITHDRAWN))]
    world.turns(3)
    world.slurm.is_down = False
    world.slurm.cancelled.clear()
    world.turns(20)
    assert "101" in world.slurm.cancelled


def test_cancelled_while_it_runs(world):
    """TERM first; what is left is ended after the grace time."""
    world.worker.start(launch(grace_s=30))
    world.turns(2)
    world.begin("1.1", "101")
    world.slurm.states["101"] = "RUNNING"
    world.turns()
    world.worker.stop(RUN, now=False)
    assert world.slurm.cancelled == ["TERM:101"]
    world.turns(5)
    assert world.slurm.cancelled == ["TERM:101"]
    world.turns(15)
    assert "101" in world.slurm.cancelled
    world.slurm.states["101"] = "CANCELLED"
    world.turns(5)
    assert world.ends == [Ended(RUN, End(None, None, parse("CancelledThere")))]


def test_withdraw_leaves_a_begun_job(world):
    world.worker.start(launch())
    world.turns(2)
    world.begin("1.1", "101")
    world.worker.withdraw(RUN)
    world.turns(2)
    assert world.ends == []


def test_race_has_one_claim_token_and_cancels_losers(world):
    world.worker.start(launch(race=("n1_gpu4", "n4_gpu1")))
    world.turns(2)
    assert world.slurm.submitted == 2
    world.begin("1.1", "102", bid=1)
    with pytest.raises(FileNotFoundError):
        world.begin("1.1", "101")
    world.turns(2)
    assert world.slurm.cancelled == ["101"]


def test_shapes_of_a_race_are_submitted_in_their_order(world):
    """The first one is preferred: it must not start after another one because its sbatch was slower."""
    calls = SlowCalls()
    world.worker = world.new_worker(calls)
    world.worker.start(launch(race=("n1_gpu4", "n4_gpu1")))
    world.turns(3)
    assert calls.names().count("submit") == 1
    calls.finish("submit")
    world.turns()
    assert calls.names().count("submit") == 1
    calls.finish("submit")
    world.turns()
    assert world.slurm.submitted == 2 and "submit" not in calls.names()


def test_forgotten_job_is_cancelled(world):
    world.worker.start(launch())
    world.turns(2)
    world.worker.forget(RUN)
    world.worker.start(launch(2))
    world.turns(4)
    assert "101" in world.slurm.cancelled
    assert "102" not in world.slurm.cancelled


def test_new_daemon_cancels_no_unknown_job(world):
    world.worker.start(launch(1))
    world.worker.start(launch(2))
    world.turns(2)
    world.worker = world.new_worker()
    world.worker.start(launch(1))
    world.turns(3)
    assert world.slurm.cancelled == []
    world.worker.start(launch(2))
    world.turns(20)
    assert (world.slurm.cancelled, world.slurm.submitted) == ([], 2)


def test_unwanted_job_is_cancelled_by_tag_later(world):
    world.worker.start(launch(1))
    world.worker.start(launch(2))
    world.turns(2)
    world.worker = world.new_worker()
    world.worker.start(launch(2))
    world.turns(30)
    assert set(world.slurm.cancelled) == {"101"}


def test_a_number_that_is_given_out_again_is_not_cancelled(world):
    """It was to be cancelled; the controller was killed, forgot its job and gave the number to another."""
    world.worker.start(launch(1))
    world.worker.start(launch(2))
    world.turns(1)
    world.slurm.is_down = True
    world.turns(5)
    world.worker.stop(RUN, now=False)
    world.slurm.cancelled.clear()
    world.slurm.comments["101"] = world.slurm.comments.pop("102")
    world.slurm.is_down = False
    world.turns(30)
    assert world.slurm.cancelled == []


def test_job_ended_by_controller_restart_is_resubmitted(world):
    world.worker.start(launch())
    world.turns(2)
    world.slurm.is_down = True
    world.turns(3)
    world.slurm.is_down = False
    world.slurm.states["101"] = "CANCELLED"
    world.turns(5)
    assert (world.slurm.submitted, world.ends) == (2, [])
    world.begin("1.1", "102")
    world.folder.put("1.1", "exit", b"0 \n")
    world.turns(2)
    assert world.ends == [Ended(RUN, End(0))]


def test_job_ended_by_controller_restart_is_resubmitted_a_few_times(world):
    world.worker.start(launch())
    world.turns(2)
    world.slurm.states["101"] = "CANCELLED"
    world.turns(2)
    assert world.ends == [Ended(RUN, End(None, None, parse("CancelledThere")))], "another user did that"
    world.worker.start(launch(2))
    world.slurm.is_down = True
    world.turns(2)
    world.slurm.is_down = False
    for _ in range(10):
        world.turns(3)
        world.slurm.states |= dict.fromkeys(world.slurm.states, "FAILED")
    assert world.slurm.submitted == 1 + 1 + 3


def test_verdict_is_requested_with_tag_of_job(world):
    asked = []
    world.slurm.verdict = lambda id, tag: asked.append((id, tag))
    world.worker.start(launch(1))
    world.turns(2)
    world.begin("1.1", "101")
    tag = world.slurm.comments.pop("101")
    world.turns(3)
    assert set(asked) == {("101", tag)}


def test_withdrawn_array_ends_with_its_begun_tasks(world):
    world.worker.start(launch(array="0-2"))
    world.turns(2)
    assert world.slurm.submitted == 1
    world.begin("1_1.1", "101_1")
    world.turns()
    world.worker.stop(Run(job(1).key, 1), now=True)
    assert world.ends == []
    world.folder.put("1_1.1", "exit", b"0 \n")
    world.turns(2)
    task = Run(job(1, task=1).key, 1)
    assert world.ends == [Ended(task, End(0)), Ended(RUN, End(None, None, WITHDRAWN))]


def test_a_thousand_jobs_are_asked_about_together(world):
    """One question an interval, however many wait; and ever longer intervals while nothing changes."""
    for number in range(1, 1001):
        world.worker.start(launch(number))
    world.turns(1, 1.0)
    assert world.slurm.submitted == 1000
    before = world.slurm.asked
    world.turns(20, 1.0)
    busy = world.slurm.asked - before
    assert 2 <= busy <= 20 / Cluster().poll_secs
    world.turns(30, 20.0)
    assert world.slurm.asked - before - busy <= 600 / Cluster().poll_most_secs + 1
    assert (world.slurm.submitted, len(world.slurm.cancelled)) == (1000, 0)


def test_nothing_to_do_means_nothing_is_asked(world):
    assert world.worker.turn() is None


def test_cancel_does_not_wait_for_submissions(world):
    """A hundred submissions wait for a slow sbatch: a cancel and the state of others go first."""
    world.worker.start(launch())
    world.turns(2)
    world.begin("1.1", "101")
    world.turns()
    calls = SlowCalls()
    world.worker = world.new_worker(calls)
    for number in range(1, 101):
        world.worker.start(launch(number))
    world.turns(3)
    assert calls.names() == ["queue", *["submit"] * 4], "a bounded number at once, and one listing"
    calls.finish("queue")
    world.worker.stop(RUN, now=False)
    assert calls.names() == [*["submit"] * 4, "queue"]
    calls.finish("queue")
    calls.finish("cancel")
    assert world.slurm.cancelled == ["TERM:101"]
    calls.finish("submit")
    world.turns()
    assert calls.names().count("submit") == 4


def test_submission_that_was_withdrawn_while_sbatch_ran_is_cancelled_there(world):
    calls = SlowCalls()
    world.worker = world.new_worker(calls)
    world.worker.start(launch())
    world.turns()
    world.worker.stop(RUN, now=False)
    assert world.ends == [Ended(RUN, End(None, None, WITHDRAWN))]
    calls.finish("submit")
    world.turns()
    calls.finish("queue")
    world.turns()
    while calls.pending:
        calls.finish(calls.names()[0])
    assert world.slurm.cancelled == ["101"]


def test_listing_that_began_before_sbatch_returned_makes_no_second_job(world):
    calls = SlowCalls()
    world.worker = world.new_worker(calls)
    world.worker.start(launch())
    world.turns()
    call, then = calls.pending.pop(calls.names().index("queue"))
    listing = call()
    world.slurm.loses_answer = True
    calls.finish("submit")
    then(listing)
    world.turns(2, 100.0)
    assert calls.names() == ["queue"], "the listing knew nothing of the job"


@pytest.mark.parametrize("action", ["stop", "kill", "signal"])
def test_reused_job_id_of_a_running_job_is_not_touched(world, action):
    """The controller lost its state: another job of the user has the number now."""
    world.worker.start(launch(grace_s=1))
    world.turns(2)
    world.begin("1.1", "101")
    world.slurm.states["101"] = "RUNNING"
    world.turns(2)
    world.slurm.comments["101"] = world.slurm.tags["101"] = "innocent"
    if action == "signal":
        world.worker.signal(RUN, 10)
    else:
        world.worker.stop(RUN, now=action == "kill")
    world.turns(30)
    assert world.slurm.cancelled == []


def test_signal_reaches_a_running_job(world):
    world.worker.start(launch())
    world.turns(2)
    world.begin("1.1", "101")
    world.slurm.states["101"] = "RUNNING"
    world.turns(2)
    world.worker.signal(RUN, 10)
    world.turns(2)
    assert world.slurm.cancelled == ["10:101"]


def test_running_task_of_an_array_is_stopped_by_the_next_daemon(world):
    """It is a submission of its own there, and its job in Slurm has the tag of the array."""
    world.worker.start(launch(array="0-2"))
    world.turns(1)
    world.slurm.queue = lambda: CommandResult(True, tasks(world, 0, 1, 2))
    world.begin("1_1.1", "101_1")
    world.turns(2)
    world.worker = world.new_worker()
    made = launch(1)
    made.job.key, made.job.remote = job(1, task=1).key, RemoteState(id="101_1")
    world.worker.start(made)
    world.worker.stop(made.run, now=False)
    world.turns(2)
    assert world.slurm.cancelled == ["TERM:101_1"]


# ---------------------------------------------------------------- a shared folder that fails


def test_orders_wait_for_a_folder_that_is_away(world, tmp_path_factory):
    world.worker.start(launch(1))
    world.turns(2)
    world.begin("1.1", "101")
    world.slurm.states["101"] = "RUNNING"
    world.turns(2)
    away = tmp_path_factory.mktemp("away") / "folder"
    world.folder.folder.rename(away)
    world.worker.stop(RUN, now=False)
    world.worker.start(launch(2))
    world.turns(5)
    assert (world.slurm.submitted, world.slurm.cancelled, world.ends) == (1, [], [])
    assert world.statuses[-1].reason.startswith("SharedFolder: No such file or directory (")
    away.rename(world.folder.folder)
    world.turns(3)
    assert (world.slurm.submitted, world.slurm.cancelled) == (2, ["TERM:101"])
    assert os.path.exists(world.folder.path("1.1", "stop"))


def test_end_is_not_judged_without_the_folder(world, tmp_path_factory):
    """Its exit record cannot be read: what Slurm says is not all."""
    world.worker.start(launch(1))
    world.turns(2)
    world.begin("1.1", "101")
    world.turns(2)
    world.folder.put("1.1", "exit", b"0 told\n")
    away = tmp_path_factory.mktemp("away") / "folder"
    world.folder.folder.rename(away)
    world.slurm.states["101"] = "FAILED"
    world.turns(10)
    assert world.ends == []
    away.rename(world.folder.folder)
    world.turns(3)
    assert world.ends == [Ended(RUN, End(0))]


@pytest.mark.parametrize("what", ["issue", "put"])
def test_nothing_is_submitted_without_its_files(world, monkeypatch, what):
    """No room for the token, or for the script."""
    made = getattr(world.folder, what)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(world.folder, what, full)
    world.worker.start(launch(1)._replace(script=b"echo hi"))
    world.turns(5)
    assert world.slurm.submitted == 0
    assert world.statuses[-1].reason.startswith("SharedFolder: No space left on device (")
    monkeypatch.setattr(world.folder, what, made)
    world.turns(3)
    assert world.slurm.submitted == 1
    assert {"ticket", "script", "asked"} <= {path.suffix[1:] for path in world.folder.folder.glob("1.1.*")}


def test_cancel_without_room_for_the_stop_file_is_kept(world, monkeypatch):
    world.worker.start(launch(1))
    world.turns(2)
    world.begin("1.1", "101")
    world.slurm.states["101"] = "RUNNING"
    world.turns(2)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(world.folder, "put", full)
        world.worker.stop(RUN, now=False)
        world.turns(3)
        assert world.slurm.cancelled == []
    world.turns(2)
    assert world.slurm.cancelled == ["TERM:101"]


def test_cancelled_before_its_files_were_written_is_never_submitted(world, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(world.folder, "issue", full)
        world.worker.start(launch(1))
        world.turns(2)
        world.worker.stop(RUN, now=False)
        world.turns(2)
    world.turns(3)
    assert (world.slurm.submitted, world.ends) == (0, [Ended(RUN, End(None, None, WITHDRAWN))])


@pytest.mark.parametrize("cancel", [False, True])
def test_submitted_run_without_token_ends(world, cancel):
    """Its token is gone: it cannot begin, and may have run. It must not stay."""
    world.folder.daemon_id()
    world.folder.put("1.1", "asked")
    world.worker.start(launch(1))
    if cancel:
        world.worker.stop(RUN, now=False)
    world.turns(3)
    assert world.ends == [Ended(RUN, End(None, None, parse("Lost")))]
    assert world.slurm.submitted == 0


def test_run_whose_token_vanished_ends(world):
    world.worker.start(launch(1))
    world.turns(2)
    os.unlink(world.folder.path("1.1", "ticket"))
    world.slurm.states["101"] = "COMPLETED"
    world.slurm.verdict = lambda id, tag: Verdict("COMPLETED", 0, None)
    world.turns(6)
    why = "StartFailed: Slurm says COMPLETED before it began"
    assert world.ends == [Ended(RUN, End(None, None, parse(why)))]


def test_job_that_slurm_has_is_not_prepared_in_another_folder(world):
    """The file system is not mounted: nothing is known here of what an earlier daemon submitted."""
    handed = launch(1)
    handed.job.remote = RemoteState(id="77")
    world.worker.start(handed)
    world.turns(3)
    assert (world.slurm.submitted, world.ends) == (0, [])
    assert world.statuses[-1].reason.startswith("SharedFolder: the files of job 1 are not there (")
    world.folder.put("1.1", "asked")
    world.folder.put("1.1", "claim.0.77")
    world.folder.put("1.1", "exit", b"0 \n")
    world.turns(3)
    assert world.ends == [Ended(RUN, End(0))]


def test_files_that_cannot_be_deleted_are_deleted_later(world, monkeypatch):
    world.worker.start(launch(1))
    world.turns(2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        world.worker.forget(RUN)
        world.turns(2)
    assert list(world.folder.folder.glob("1.1.*"))
    world.turns(2)
    assert not list(world.folder.folder.glob("1.1.*"))


def test_running_task_survives_the_withdrawal_of_its_array(world):
    """Only what waits is cancelled there: --state=PENDING."""
    kinds = []
    cancel = world.slurm.cancel
    world.slurm.cancel = lambda ids, signal="", **more: (kinds.append(more), cancel(ids, signal, **more))[1]
    world.worker.start(launch(array="0-2"))
    world.turns(2)
    world.begin("1_1.1", "101_1")
    world.turns()
    world.worker.withdraw(RUN)
    world.turns(3)
    assert [more["only_pending"] for more in kinds] == [True]
    assert world.ends == []


# ---------------------------------------------------------------- refusals that pass

TOO_MANY = (
    "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates"
    " accounting/QOS policy (job submit limit, user's size and/or time limits)\n"
)


def test_jobs_over_a_submit_limit_stay_queued_and_go_when_one_ends(world):
    world.worker.start(launch(1))
    world.turns()
    world.slurm.refuses = TOO_MANY
    for number in (2, 3, 4):
        world.worker.start(launch(number))
    world.turns(3)
    last = {status.key: status.reason for status in world.statuses}
    words = (
        "AssocMaxSubmitJobLimit: you have as many jobs in Slurm as your account allows; gflow keeps the job"
    )
    assert [last[job(number).key] for number in (2, 3, 4)] == [words] * 3
    assert world.ends == []
    world.turns(1, 600.0)
    world.turns()
    world.slurm.refuses = ""
    world.begin("1.1", "101")
    world.folder.put("1.1", "exit", b"0 \n")
    world.turns(2)
    assert world.slurm.submitted >= 3, "at once"
    world.turns(40)
    assert world.slurm.submitted == 4


def test_a_submit_limit_is_tried_with_one_job_at_a_time(world):
    tried = []
    submit = world.slurm.submit
    world.slurm.submit = lambda *words, **more: (tried.append(world.now), submit(*words, **more))[1]
    world.slurm.refuses = TOO_MANY
    for number in range(1, 51):
        world.worker.start(launch(number))
    world.turns(300, 1.0)
    assert 5 <= len(tried) <= 12, "longer and longer pauses, not fifty calls each time"
    world.slurm.refuses = ""
    world.turns(65, 1.0)
    assert world.slurm.submitted == 50


def test_another_account_is_not_held_back_by_a_limit(world):
    submit = world.slurm.submit

    def limited(script, *words, **more):
        if "--account=full" in script:
            return CommandResult(False, "", TOO_MANY)
        return submit(script, *words, **more)

    world.slurm.submit = limited
    world.worker.start(launch(1, project="full"))
    world.worker.start(launch(2, project="other"))
    world.turns()
    assert world.slurm.submitted == 1


def test_a_message_that_gflow_does_not_know_keeps_the_job(world):
    world.slurm.refuses = "sbatch: error: job_submit: the moon is not right\n"
    world.worker.start(launch(1))
    world.worker.start(launch(2))
    world.turns(3)
    assert world.ends == []
    why = "SlurmRefuses: job_submit: the moon is not right; gflow goes on trying"
    assert {status.reason for status in world.statuses} == {why}
    world.slurm.refuses = ""
    world.turns(10)
    assert world.slurm.submitted == 2


# ---------------------------------------------------------------- jobs that Slurm has forgotten


def accounted(world, state: str, code: int = 0, name: str = "job-1") -> None:
    """The accounting knows the job; the queue does not."""
    world.slurm.verdict = lambda id, tag: Verdict(state, code, None, name)


def test_job_cancelled_there_and_forgotten_does_not_come_back(world):
    world.worker.start(launch())
    world.turns(2)
    accounted(world, "CANCELLED")
    del world.slurm.comments["101"]
    world.turns(15)
    assert world.ends == [Ended(RUN, End(None, None, parse("CancelledThere")))]
    assert world.slurm.submitted == 1
    with pytest.raises(FileNotFoundError):
        world.begin("1.1", "101")


def test_job_cancelled_there_while_no_daemon_ran_does_not_come_back(world):
    world.worker.start(launch())
    world.turns(2)
    accounted(world, "CANCELLED")
    del world.slurm.comments["101"]
    world.worker = world.new_worker()
    world.worker.start(launch())
    world.turns(15)
    assert world.ends == [Ended(RUN, End(None, None, parse("CancelledThere")))]
    assert world.slurm.submitted == 1


@pytest.mark.parametrize(
    "verdict", [None, Verdict("PENDING", 0, None, "job-1"), Verdict("COMPLETED", 0, None, "other")]
)
def test_job_that_the_controller_lost_is_submitted_again(world, verdict):
    """The accounting does not know it, shows it as waiting, or has another job of that number."""
    world.slurm.verdict = lambda id, tag: verdict
    world.worker.start(launch())
    world.turns(2)
    del world.slurm.comments["101"]
    world.turns(15)
    assert (world.slurm.submitted, world.ends) == (2, [])


def test_one_shape_of_a_race_cancelled_and_forgotten_leaves_the_other(world):
    world.worker.start(launch(race=("n1_gpu4", "n4_gpu1")))
    world.turns(2)
    accounted(world, "CANCELLED")
    del world.slurm.comments["101"]
    world.turns(15)
    assert (world.slurm.submitted, world.ends) == (2, [])
    del world.slurm.comments["102"]
    world.turns(15)
    assert world.ends == [Ended(RUN, End(None, None, parse("CancelledThere")))]


@pytest.mark.parametrize("state", ["PREEMPTED", "TIMEOUT", "CANCELLED"])
def test_record_of_a_job_that_was_told_to_stop_does_not_beat_the_accounting(world, state):
    world.worker.start(launch(requeue=True))
    world.turns(2)
    world.begin("1.1", "101")
    accounted(world, state)
    del world.slurm.comments["101"]
    world.folder.put("1.1", "exit", b"143 told\n")
    world.turns(10)
    why = {"PREEMPTED": "Preempted", "TIMEOUT": "TimeLimit", "CANCELLED": "CancelledThere"}[state]
    assert world.ends == [Ended(RUN, End(143, None, parse(why)))]


@pytest.mark.parametrize(
    ("requeue", "record", "end"),
    [
        (True, b"143 told\n", End(143, None, parse("Preempted"))),
        (False, b"143 told\n", End(143)),
        (True, b"0 told\n", End(0)),
    ],
)
def test_job_told_to_stop_without_accounting(world, requeue, record, end):
    world.worker.start(launch(requeue=requeue))
    world.turns(2)
    world.begin("1.1", "101")
    del world.slurm.comments["101"]
    world.folder.put("1.1", "exit", record)
    world.turns(15)
    assert world.ends == [Ended(RUN, end)]


def tasks(world, *numbers: int) -> str:
    comment = world.slurm.comments["101"]
    return "\n".join(f"101_{n}|{101 + n}|101|{n}|PENDING|Priority||{comment}" for n in numbers)


@pytest.mark.parametrize("knows", [True, False])
def test_task_cancelled_there_and_forgotten_ends(world, knows):
    """Its array is still there, so Slurm has not lost it."""
    world.worker.start(launch(array="0-2"))
    world.turns(1)
    world.slurm.queue = lambda: CommandResult(True, tasks(world, 0, 1, 2))
    world.turns(3)
    if knows:
        accounted(world, "CANCELLED")
    world.slurm.queue = lambda: CommandResult(True, tasks(world, 0, 2))
    world.turns(10)
    world.turns(10, 60.0 if not knows else 1.0)
    task = Run(job(1, task=1).key, 1)
    assert world.ends == [Ended(task, End(None, None, parse("CancelledThere")))]
    assert world.slurm.submitted == 1


# ---------------------------------------------------------------- a site that rewrites comments


def test_job_with_rewritten_comment_is_found_by_its_number(world):
    world.slurm.rewrites = "site-tag"
    world.worker.start(launch())
    world.turns(30)
    assert world.slurm.submitted == 1
    assert world.statuses[-1].reason.startswith("Priority"), "its state is known"
    world.begin("1.1", "101")
    world.slurm.states["101"] = "RUNNING"
    world.turns(3)
    assert (world.statuses[-1].running, world.statuses[-1].nodes) == (True, "n1")
    world.worker.stop(RUN, now=False)
    world.turns(5)
    assert world.slurm.cancelled == ["TERM:101"]
    world.slurm.states["101"] = "CANCELLED"
    world.turns(5)
    assert world.ends == [Ended(RUN, End(None, None, parse("CancelledThere")))]


def test_reused_number_with_the_same_rewritten_comment_is_not_touched(world):
    world.slurm.rewrites = "site-tag"
    world.worker.start(launch())
    world.turns(5)
    world.begin("1.1", "101")
    world.slurm.states["101"] = "RUNNING"
    world.turns(3)
    world.slurm.tags["101"] = "another script"
    world.worker.stop(RUN, now=True)
    world.turns(10)
    assert world.slurm.cancelled == []


def test_copies_of_a_job_that_the_queue_never_shows_are_bounded(world):
    world.slurm.queue = lambda: CommandResult(True, "")
    world.worker.start(launch())
    world.turns(200)
    assert world.slurm.submitted == 1 + 3
    assert world.statuses[-1].reason.startswith("NotShown: ")
    world.begin("1.1", "103")
    world.folder.put("1.1", "exit", b"0 \n")
    world.turns(2)
    assert world.ends == [Ended(RUN, End(0))], "a copy that begins is the run"


# ---------------------------------------------------------------- races that block themselves


@pytest.fixture
def race(world):
    """The first shape waits for resources; the second could start sooner, and is behind it."""
    world.slurm.reasons["101"] = "Resources"
    world.slurm.starts = {"1": "2026-11-18T12:30:00", "4": "2026-11-18T12:05:00"}
    world.slurm.nice["101"] = 7
    world.worker.start(launch(race=("n1_gpu4", "n4_gpu1"), time_limit_s=3600))
    world.turns(6)
    return world


def test_shape_that_blocks_its_sibling_steps_back(race):
    assert race.slurm.nice == {"101": 1_000_007}
    assert race.statuses[-1].reason.startswith("RaceOrder: n4_gpu1 may start sooner, ")
    race.begin("1.1", "102", bid=1)
    race.slurm.states["102"] = "RUNNING"
    race.turns(3)
    assert race.slurm.cancelled == ["101"]


def test_order_of_a_race_is_restored_if_it_did_not_help(race):
    for _ in range(100):
        race.turns()
        if race.slurm.nice == {"101": 7}:
            break
    assert race.slurm.nice == {"101": 7}
    assert race.statuses[-1].reason.startswith(("Resources", "Priority"))


def test_next_daemon_restores_the_order_of_a_race(race):
    race.worker = race.new_worker()
    race.slurm.starts.clear()
    race.worker.start(launch(race=("n1_gpu4", "n4_gpu1"), time_limit_s=3600))
    race.turns(3)
    assert race.slurm.nice == {"101": 7}


@pytest.mark.parametrize("first", ["2026-11-18T12:04:00", "2026-11-18T12:06:00"])
def test_shape_that_starts_as_soon_keeps_its_place(world, first):
    world.slurm.reasons["101"] = "Resources"
    world.slurm.starts = {"1": first, "4": "2026-11-18T12:05:00"}
    world.worker.start(launch(race=("n1_gpu4", "n4_gpu1")))
    world.turns(30)
    assert world.slurm.nice == {}


def test_job_that_began_while_a_listing_was_made_is_not_unknown(world):
    calls = SlowCalls()
    world.worker = world.new_worker(calls)
    world.worker.start(launch())
    world.turns()
    call, then = calls.pending.pop(calls.names().index("queue"))
    listing = call()
    calls.finish("submit")
    world.begin("1.1", "101")
    world.turns()
    then(listing)
    world.turns()
    assert "verdict" not in calls.names(), "nothing is asked about it"
    assert [status.reason for status in world.statuses if status.running] == [""]
