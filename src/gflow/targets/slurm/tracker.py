"""The tracker: all submissions and runs on a cluster, reports to the daemon, and the time of the next poll.

`submit`, `poll` and `cancel` share one Tracker. All of them run in the worker's thread.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence

from gflow.core.events import RemoteStatus
from gflow.targets.port import End, Ended, Run
from gflow.targets.slurm.array_parts import USUAL_LIMIT
from gflow.targets.slurm.background_calls import Calls
from gflow.targets.slurm.candidate import Action, Candidate, Retry, Scancel, Stage
from gflow.targets.slurm.commands.identities import Identities
from gflow.targets.slurm.commands.inquiries import Inquiries
from gflow.targets.slurm.commands.reasons import in_words
from gflow.targets.slurm.commands.slurm_cli import Slurm
from gflow.targets.slurm.files.output_fetches import OutputFetches
from gflow.targets.slurm.files.snapshot_sends import SnapshotSends
from gflow.targets.slurm.remote_launch import launch_there, outputs_of
from gflow.targets.slurm.settings import Cluster
from gflow.targets.slurm.shared_folder import SharedFolder
from gflow.targets.slurm.ssh.remote_folder import RemoteFolder, Unreachable
from gflow.targets.slurm.submission import SlurmSubmission, TrackedRun

log = logging.getLogger("gflow.slurm")
# Seconds between two looks at the shared folder while there is any submission.
LOOK_S = 1.0
# The reason of a run that has ended there, and whose outputs are not here yet.
FETCHING = "FetchingOutputs: it has ended, and its outputs are being fetched"
# Characters of a reason or a list of nodes that are kept: the other side may print anything.
MOST_TEXT = 4000
# Seconds after a restart in which the controller may not know its nodes yet and refuses valid jobs.
SHAKY_S = 60.0


class Tracker:
    """The state of the worker."""

    def __init__(
        self,
        cluster: Cluster,
        shared_folder: SharedFolder | RemoteFolder,
        slurm: Slurm,
        on_status: Callable[[list[RemoteStatus]], None],
        on_end: Callable[[Ended], None],
        calls: Calls,
        clock: Callable[[], float] = time.monotonic,
        name: str = "",
    ) -> None:
        self.name = name
        self.cluster, self.shared_folder, self.slurm, self.clock = cluster, shared_folder, slurm, clock
        self.calls = calls
        self._on_status, self._on_end = on_status, on_end
        # Our identity in tags; empty until the shared folder could be used.
        self.daemon = ""
        self.submissions: dict[Run, SlurmSubmission] = {}
        self.tracked_runs: dict[str, TrackedRun] = {}
        # Submissions whose files are not in the shared folder yet, and runs that are to be withdrawn or
        # stopped: kept until it is done, as the folder may fail for a while.
        self.unprepared: dict[Run, SlurmSubmission] = {}
        self.pending_actions: dict[str, TrackedRun] = {}
        # Runs whose files are to be deleted, and runs that ended before any file could be written.
        self.to_forget: set[str] = set()
        self.untouched: set[str] = set()
        self._folder_error = ""
        # Submissions that Slurm may not have yet, in the order in which they came.
        self.unsent: dict[Run, SlurmSubmission] = {}
        # Runs that were asked to stop, by name.
        self.stopping: dict[str, TrackedRun] = {}
        self.pending_reports: list[RemoteStatus] = []
        # Calls of scancel, until one succeeds or the job is gone, with the tick of the order; and those
        # that are being made.
        self.scancels: dict[Scancel, int] = {}
        self.sent_scancels: set[Scancel] = set()
        # Accounts, QOSs and partitions for which Slurm takes no more jobs now.
        self.held_back: dict[tuple[str, ...], Retry] = {}
        # Calls of sbatch that have not returned, and whether a listing of the queue has not.
        self.sbatch_calls = 0
        self.is_polling = False

        def poll_soon() -> None:
            self.poll_within(LOOK_S)

        self.inquiries = Inquiries(slurm, calls, poll_soon)
        self.identities = Identities(slurm, calls, self.tick, poll_soon)
        self.snapshots = SnapshotSends(calls, clock)
        # Fetches outputs; set by the worker.
        self.outputs: OutputFetches | None = None
        # MaxArraySize of the cluster, which is asked for when an array may exceed it; 0: not known.
        self.array_limit = 0
        self._limit_retry = Retry()
        # Whether the last listing left the state of a job open.
        self.is_unsettled = False
        # Orders what was asked of Slurm: a listing speaks only of what was done before it began.
        self._ticks = itertools.count(1)
        # No look at the shared folder before this time.
        self.look_at = 0.0
        # Ids of jobs that were submitted again: their ends are ignored.
        self.ignored_ids: set[str] = set()
        self.poll_at = self.pause_s = 0.0
        self.created_at = clock()
        # The time since which the controller does not answer; 0: it answers.
        self._down_since = 0.0
        # The same on the wall clock.
        self.down_at = 0.0
        self._shaky_until = 0.0
        # When the controller answered last (wall clock; 0: never), and what its command said since.
        self.answered_at = 0.0
        self.error = ""
        # Read the shared folder in the next turn even if its mtime has not changed.
        self.must_read_folder = True

    # ------------------------------------------------------------ the controller

    @property
    def is_down(self) -> bool:
        return self._down_since > 0

    @property
    def is_shaky(self) -> bool:
        """Whether the controller is down, or was within SHAKY_S: its refusals are not final then."""
        return self.is_down or self.clock() < self._shaky_until

    def mark_down(self, why: str) -> None:
        """Record that the controller does not answer, back off, and report it for all unsent submissions."""
        now = self.clock()
        self.error = why.strip()
        if not self._down_since:
            log.warning("the Slurm controller does not answer: %s", why.strip())
            self._down_since = now
            self.down_at = time.time()
        self.pause_s = min(max(2.0, self.pause_s * 2), self.cluster.poll_most_secs)
        self.poll_at = now + self.pause_s
        if self.shared_folder.is_remote:
            self._report_unreachable()
            return
        for submission in self.unsent.values():
            self.report_submission(submission, in_words("SlurmUnreachable"))

    @property
    def unreachable(self) -> str:
        """That the cluster does not answer, since when and why."""
        since = time.strftime("%H:%M", time.localtime(self.down_at))
        return f"{self.name} unreachable since {since} ({self.error[:200]})"

    def _report_unreachable(self) -> None:
        """Report for all runs that the cluster does not answer. They keep their state."""
        reason = f"Unreachable: {self.unreachable}"
        for submission in self.submissions.values():
            if any(one.claim is None for one in submission.tracked_runs.values()):
                self.report_submission(submission, reason)
        for tracked in self.tracked_runs.values():
            if tracked.claim is not None:
                self.report(tracked, running=True, id=tracked.claim.id, reason=reason)

    def mark_up(self) -> None:
        self.answered_at, self.error = time.time(), ""
        if self._down_since:
            log.warning("the Slurm controller answers again")
            self._down_since, self.pause_s = 0.0, 0.0
            self.ignored_ids.clear()
            for tracked in self.tracked_runs.values():
                tracked.reported = ()  # the reason that is shown is that it does not answer
            for candidate in [one for each in self.submissions.values() for one in each.candidates]:
                candidate.copies = 0  # a controller that restarts may have lost them all
            self._shaky_until = self.clock() + SHAKY_S

    def poll_now(self) -> None:
        """Poll in the next turn, and restart from the shortest interval."""
        self.poll_at, self.pause_s = 0.0, 0.0

    def tick(self) -> int:
        return next(self._ticks)

    def poll_within(self, seconds: float) -> None:
        """Poll again after this many seconds at the latest."""
        self.poll_at = min(self.poll_at, self.clock() + seconds)

    def knows_array_limit(self, submission: SlurmSubmission) -> bool:
        """Whether it is known how to submit an array. MaxArraySize is asked for if it may matter."""
        if submission.last_task < USUAL_LIMIT or self.array_limit:
            return True
        if self.clock() >= self._limit_retry.at:
            self._limit_retry.back_off(self.clock(), self.cluster.poll_most_secs, LOOK_S)
            self.calls.start(self.slurm.max_array_size, self._note_array_limit, 0)
        return False

    def _note_array_limit(self, limit: int) -> None:
        self.array_limit = limit

    # ------------------------------------------------------------ ends

    def withdraw(self, tracked: TrackedRun) -> bool:
        """Take the claim token of a run; whether the run can no longer begin."""
        if tracked.claim is not None or tracked.has_exit:
            return False
        tracked.is_withdrawn = tracked.is_withdrawn or self.shared_folder.withdraw(tracked.name)
        return tracked.is_withdrawn

    def withdraw_all(self, runs: Sequence[TrackedRun]) -> dict[str, bool]:
        """As `withdraw`, for several runs with one call of the shared folder; by name."""
        names = [one.name for one in runs if not (one.claim or one.has_exit or one.is_withdrawn)]
        found = self.shared_folder.withdraw_all(names) if names else {}
        for tracked in runs:
            tracked.is_withdrawn = tracked.is_withdrawn or found.get(tracked.name, False)
        return {tracked.name: tracked.is_withdrawn for tracked in runs}

    def request(self, tracked: TrackedRun, action: Action) -> None:
        """Note an action on a run, for `cancel.carry_out`."""
        tracked.action = action
        self.pending_actions[tracked.name] = tracked

    def report_trouble(self, submission: SlurmSubmission, error: OSError) -> None:
        """Report that a submission waits because the shared folder cannot be used."""
        if isinstance(error, Unreachable):
            if not self.is_down:
                self.mark_down(str(error.strerror))
            return
        words = f"{error.strerror or error} ({self.shared_folder.folder}); gflow goes on trying"
        if words != self._folder_error:
            log.warning("the shared folder: %s", words)
        self._folder_error = words
        self.report_submission(submission, f"SharedFolder: {words}")

    def report_folder_error(self, error: OSError) -> None:
        """Report that the shared folder as a whole cannot be used."""
        waiting = {**self.unprepared, **self.unsent}
        for submission in [
            *waiting.values(),
            *(tracked.submission for tracked in self.pending_actions.values()),
        ]:
            self.report_trouble(submission, error)

    def mark_for_cancel(self, submission: SlurmSubmission, task: str = "") -> None:
        """Order scancel for the unclaimed Slurm jobs of a submission, or of one of its tasks."""
        number = task.partition(".")[0].partition("_")[2] if submission.is_array else ""
        claimed = {tracked.claim.id for tracked in submission.tracked_runs.values() if tracked.claim}
        for candidate in submission.candidates_of(int(number)) if number else submission.candidates:
            id = f"{candidate.id}_{int(number) - candidate.offset}" if number else candidate.id
            if candidate.id and id not in claimed:
                tag = submission.tag(self.daemon, candidate.number)
                is_whole_array = submission.is_array and not number  # some of its tasks may run
                self.order_scancel(Scancel(id, tag, only_pending=is_whole_array))

    def order_scancel(self, order: Scancel) -> None:
        """Order a call of scancel. It is made after the next listing that shows the job with its tag."""
        self.scancels[order] = self.tick()
        if not self.is_down:
            self.poll_at = 0.0

    def end(self, tracked: TrackedRun, end: End) -> None:
        """Report the end of a run: no process of it lives or can begin."""
        self.flush_reports()
        submission = tracked.submission
        if submission.run == tracked.run:
            self.drop(submission)
        self.tracked_runs.pop(tracked.name, None)
        self.stopping.pop(tracked.name, None)
        self.pending_actions.pop(tracked.name, None)
        submission.tracked_runs.pop(tracked.name, None)
        self._report_end(tracked, Ended(tracked.run, end))
        for held in self.held_back.values():
            held.at = 0.0  # a limit may allow one more now
        if submission.is_array:
            self.end_withdrawn_array(submission)
        self.poll_now()

    def _report_end(self, tracked: TrackedRun, ended: Ended) -> None:
        """Report an end; of a run with outputs, after these have been fetched or could not be."""
        launch = tracked.submission.launch
        order = outputs_of(launch, launch_there(launch, self.shared_folder)) if tracked.claim else None
        if order is None or self.outputs is None:
            self._on_end(ended)
            return
        assert tracked.claim is not None
        self.report(tracked, running=True, id=tracked.claim.id, reason=FETCHING)
        self.flush_reports()
        self.outputs.hold(ended, order, self._on_end)

    def end_withdrawn_array(self, submission: SlurmSubmission) -> None:
        """End an array that was withdrawn or refused, once none of its tasks runs or can begin."""
        runs = submission.tracked_runs.values()
        if submission.refusal and self.is_tracked(submission) and all(one.is_withdrawn for one in runs):
            self.end_submission(submission)

    def end_submission(self, submission: SlurmSubmission) -> None:
        """Report the end of an array of which no task can begin any more. `refusal` is the reason."""
        self._on_end(Ended(submission.run, End(problem=submission.refusal)))
        self.drop(submission)

    def drop(self, submission: SlurmSubmission) -> None:
        self.mark_for_cancel(submission)
        self.submissions.pop(submission.run, None)
        self.unsent.pop(submission.run, None)
        self.unprepared.pop(submission.run, None)
        for name in submission.tracked_runs:
            self.tracked_runs.pop(name, None)
            self.stopping.pop(name, None)
            self.pending_actions.pop(name, None)

    def is_tracked(self, submission: SlurmSubmission) -> bool:
        return self.submissions.get(submission.run) is submission

    def set_stage(self, submission: SlurmSubmission, candidate: Candidate, stage: Stage) -> None:
        """Change the stage of a candidate."""
        candidate.stage = stage
        if any(one.stage in (Stage.NEW, Stage.UNSURE) for one in submission.candidates):
            self.unsent[submission.run] = submission
        else:
            self.unsent.pop(submission.run, None)

    def known_tags(self) -> dict[str, str]:
        """The tag that each Slurm job should have whose number is known."""
        tags = {order.id.partition("_")[0]: order.tag for order in self.scancels}
        for submission in self.submissions.values():
            for candidate in submission.candidates:
                if candidate.id:
                    tags[candidate.id] = submission.tag(self.daemon, candidate.number)
        return tags

    # ------------------------------------------------------------ reports

    def report(
        self, tracked: TrackedRun, *, running: bool = False, reason: str = "", id: str = "", nodes: str = ""
    ) -> None:
        """Queue a status report about a run if the status has changed."""
        reason, nodes = reason[:MOST_TEXT], nodes[:MOST_TEXT]
        status = (running, reason, id, nodes)
        if tracked.reported == status:
            return
        tracked.reported = status
        if not running and tracked.submission.is_array:
            self.report_submission(tracked.submission, reason, id.partition("_")[0])
            return
        run, gpus = tracked.run, tracked.submission.gpus_of(tracked.claim) if running else 0
        self.pending_reports.append(
            RemoteStatus(
                key=run.key,
                attempt=run.attempt,
                running=running,
                reason=reason,
                id=id,
                nodes=nodes,
                gpus=gpus,
            )
        )

    def report_submission(self, submission: SlurmSubmission, reason: str, id: str = "") -> None:
        run, reason = submission.run, reason[:MOST_TEXT]
        if submission.reported != (reason, id):
            submission.reported = (reason, id)
            self.pending_reports.append(RemoteStatus(key=run.key, attempt=run.attempt, reason=reason, id=id))

    def flush_reports(self) -> None:
        if self.pending_reports:
            reports, self.pending_reports = self.pending_reports, []
            self._on_status(reports)
