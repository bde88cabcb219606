"""The Slurm worker: submits, polls and cancels, in its own thread, as a Slurm command may take seconds.

Runs start exactly once for two reasons. Each submission has a tag, and one whose outcome is unknown is
looked up by that tag before it is repeated. And a job runs only if it can take its claim token
(`shared_folder`): a duplicate of the job finds none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gflow.targets.port import Launch, Run
from gflow.targets.slurm import cancel, poll, prepare, submit
from gflow.targets.slurm.files.output_fetches import OutputFetches
from gflow.targets.slurm.files.snapshot_sends import Transfer
from gflow.targets.slurm.ssh.remote_folder import Unreachable
from gflow.targets.slurm.submission import SlurmSubmission
from gflow.targets.slurm.tracker import LOOK_S, Tracker

# Seconds until the next turn while the shared folder cannot be used at all.
NO_FOLDER_S = 5.0


class Connection(NamedTuple):
    """The connection to the controller, as of the last poll."""

    # Whether the controller did not answer when it was last asked.
    is_down: bool = False
    # Whether it is down or has just restarted: its refusals are not final then.
    is_shaky: bool = False
    # When it answered last (wall clock; 0: never), and what its command said since.
    answered_at: float = 0.0
    error: str = ""
    # Since when it does not answer, and why, in words; empty: it answers.
    unreachable: str = ""


class SlurmWorker:
    """Executes the daemon's requests. All methods are called from one thread and may take seconds."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    @property
    def connection(self) -> Connection:
        tracker = self._tracker
        words = tracker.unreachable if tracker.is_down else ""
        return Connection(tracker.is_down, tracker.is_shaky, tracker.answered_at, tracker.error, words)

    def begun_runs(self) -> list[str]:
        """The names of the runs that have begun and not ended."""
        return [name for name, tracked in self._tracker.tracked_runs.items() if tracked.claim is not None]

    def send_snapshots_by(self, make: Callable[[str], Transfer]) -> None:
        """`make` makes the transfer for a shared folder, whose path may be known only later."""
        self._tracker.snapshots.make = lambda: make(str(self._tracker.shared_folder.folder))

    def fetch_outputs_by(self, outputs: OutputFetches) -> None:
        self._tracker.outputs = outputs

    # ------------------------------------------------------------ requests of the daemon

    def start(self, launch: Launch) -> None:
        """Track a launch, to be submitted in the next turn unless an earlier daemon has submitted it."""
        tracker = self._tracker
        submission = SlurmSubmission(launch, was_submitted=False)
        tracker.submissions[launch.run] = tracker.unprepared[launch.run] = submission
        tracker.tracked_runs |= submission.tracked_runs
        if tracker.is_down and tracker.shared_folder.is_remote:
            tracker.report_submission(submission, f"Unreachable: {tracker.unreachable}")

    def stop(self, run: Run, *, now: bool) -> None:
        cancel.stop(self._tracker, run, now=now)
        self._start_poll_if_due()

    def withdraw(self, run: Run) -> None:
        cancel.withdraw(self._tracker, run)

    def signal(self, run: Run, number: int) -> None:
        cancel.signal(self._tracker, run, number)
        self._start_poll_if_due()

    def forget(self, run: Run) -> None:
        """Delete the files of a run whose end is durable. A late duplicate finds no claim token."""
        tracker = self._tracker
        submission = tracker.submissions.get(run)
        tracked = tracker.tracked_runs.pop(run.name, None)
        if run.name in tracker.untouched:
            tracker.untouched.discard(run.name)
            return
        tracker.to_forget.add(run.name)
        if submission is not None:
            tracker.to_forget.update(submission.tracked_runs)
            tracker.drop(submission)
        elif tracked is not None and tracker.is_tracked(tracked.submission):
            tracked.submission.tracked_runs.pop(run.name, None)

    # ------------------------------------------------------------ a turn

    def turn(self) -> float | None:
        """Do everything that is due. Seconds until the next turn; None: not before the next request."""
        tracker = self._tracker
        if not (tracker.submissions or tracker.scancels or tracker.to_forget):
            return None
        if tracker.shared_folder.is_remote and tracker.is_down and tracker.clock() < tracker.poll_at:
            tracker.flush_reports()
            return self._until_poll()
        try:
            self._use_folder()
        except Unreachable as error:
            tracker.mark_down(str(error.strerror))
        except OSError as error:
            tracker.report_folder_error(error)
        if not tracker.daemon:
            tracker.flush_reports()
            is_remote = tracker.shared_folder.is_remote
            return self._until_poll() if is_remote else NO_FOLDER_S
        cancel.kill_due(tracker)
        self._start_poll_if_due()
        submit.submit_due(tracker)
        tracker.flush_reports()
        if tracker.is_polling:
            return LOOK_S
        return min(LOOK_S, max(0.0, tracker.poll_at - tracker.clock()))

    def _until_poll(self) -> float:
        """Seconds until a cluster that does not answer is asked again, a few at most."""
        return min(NO_FOLDER_S, max(0.0, self._tracker.poll_at - self._tracker.clock()))

    def _use_folder(self) -> None:
        """Do what needs the shared folder: delete and write files, read news, withdraw and stop runs."""
        tracker, shared_folder = self._tracker, self._tracker.shared_folder
        tracker.daemon = tracker.daemon or shared_folder.daemon_id()
        if tracker.to_forget:
            shared_folder.clear(tracker.to_forget)
            tracker.to_forget.clear()
        now = tracker.clock()
        is_due = now >= tracker.look_at and (tracker.must_read_folder or shared_folder.has_news())
        if is_due or prepare.due_submissions(tracker):
            files = shared_folder.look()
            tracker.must_read_folder = False
            tracker.look_at = now + LOOK_S
            prepare.prepare_all(tracker, files)
            poll.apply_files(tracker, files)
        cancel.carry_out(tracker, list(tracker.pending_actions.values()))

    def _start_poll_if_due(self) -> None:
        if self._tracker.daemon and self._tracker.clock() >= self._tracker.poll_at:
            poll.start_poll(self._tracker)
