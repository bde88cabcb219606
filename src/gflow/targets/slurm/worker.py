"""The Slurm worker: submits, polls and cancels, in its own thread, as a Slurm command may take seconds.

Runs start exactly once for two reasons. Each submission has a tag, and one whose outcome is unknown is
looked up by that tag before it is repeated. And a job runs only if it can take its claim token
(`shared_folder`): a duplicate of the job finds none.
"""

from __future__ import annotations

from gflow.targets.port import Launch, Run
from gflow.targets.slurm import cancel, poll, submit
from gflow.targets.slurm.shared_folder import RunFiles
from gflow.targets.slurm.tracker import LOOK_S, SlurmSubmission, Stage, Tracker

UNTOUCHED = RunFiles(has_token=True, was_submitted=False, claim=None, withdrawn=False, exit=False)


class SlurmWorker:
    """Executes the daemon's requests. All methods are called from one thread and may take seconds."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        # The listing of the shared folder, shared by all starts until the next turn: it may have thousands
        # of entries.
        self._folder_cache: dict[str, RunFiles] | None = None

    @property
    def is_down(self) -> bool:
        return self._tracker.is_down

    @property
    def is_shaky(self) -> bool:
        return self._tracker.is_shaky

    # ------------------------------------------------------------ requests of the daemon

    def start(self, launch: Launch) -> None:
        """Track a launch, to be submitted in the next turn unless an earlier daemon has submitted it."""
        tracker, shared_folder = self._tracker, self._tracker.shared_folder
        if self._folder_cache is None:
            self._folder_cache = shared_folder.look()
        known = self._folder_cache
        found = known.get(launch.run.name)
        submission = SlurmSubmission(launch, was_submitted=found is not None and found.was_submitted)
        tracker.submissions[launch.run] = submission
        tracker.tracked_runs |= submission.tracked_runs
        untouched = [
            name for name in submission.tracked_runs if name not in known or known[name] == UNTOUCHED
        ]
        if submission.candidates[0].stage is Stage.NEW:
            shared_folder.issue(untouched)
            if launch.script is not None:
                shared_folder.put(launch.run.name, "script", launch.script)
        tracker.must_read_folder = True
        if all(
            name in known and (known[name].claim or known[name].withdrawn) for name in submission.tracked_runs
        ):
            for candidate in submission.candidates:  # every run has been claimed or withdrawn
                candidate.stage = Stage.SENT

    def stop(self, run: Run, *, now: bool) -> None:
        cancel.stop(self._tracker, run, now=now)

    def withdraw(self, run: Run) -> None:
        cancel.withdraw(self._tracker, run)

    def signal(self, run: Run, number: int) -> None:
        cancel.signal(self._tracker, run, number)

    def forget(self, run: Run) -> None:
        """Delete the files of a run whose end is durable. A late duplicate finds no claim token."""
        tracker = self._tracker
        self._folder_cache = None
        submission = tracker.submissions.get(run)
        tracked = tracker.tracked_runs.pop(run.name, None)
        names = [run.name]
        if submission is not None:
            names += submission.tracked_runs
            tracker.drop(submission)
        elif tracked is not None and tracked.submission.run in tracker.submissions:
            tracked.submission.tracked_runs.pop(run.name, None)
        for name in names:
            tracker.shared_folder.clear(name)

    # ------------------------------------------------------------ a turn

    def turn(self) -> float | None:
        """Do everything that is due. Seconds until the next turn; None: not before the next request."""
        tracker = self._tracker
        self._folder_cache = None
        if not tracker.submissions and not tracker.to_cancel:
            return None
        if tracker.must_read_folder or tracker.shared_folder.has_news():
            tracker.must_read_folder = False
            poll.read_shared_folder(tracker)
        waiting = any(
            candidate.stage in (Stage.NEW, Stage.UNSURE)
            for e in tracker.submissions.values()
            for candidate in e.candidates
        )
        if tracker.clock() >= tracker.poll_at:
            poll.poll(tracker)
        if waiting and not tracker.is_down:
            submit.submit_all(tracker)
        cancel.stop_due(tracker)
        tracker.flush_reports()
        return min(LOOK_S, max(0.0, tracker.poll_at - tracker.clock()))
