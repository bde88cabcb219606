"""How a job ended, in words."""

import pytest

from gflow.core.ids import job_key
from gflow.core.model import JobState
from gflow.core.reasons import parse
from gflow.testing import running
from gflow.text.end_line import spell_end


@pytest.mark.parametrize(
    ("state", "reason", "text"),
    [
        ("Finished", "", "finished after 00:01:12"),
        ("Timeout", "TimeLimit", "timed out after 00:01:12 (limit 00:02:00)"),
        ("Cancelled", "", "was cancelled by ann after 00:01:12"),
        ("Cancelled", "CancelledByUser", "was cancelled by ann after 00:01:12"),
        ("Cancelled", "CancelledByUser: root", "was cancelled by root after 00:01:12"),
        ("Cancelled", "CancelledThere", "was cancelled after 00:01:12"),
        ("Cancelled", "DependencyFailed:3", "was cancelled: job 3 did not succeed"),
        ("Cancelled", "IdleGPU: GPU 0 idle", "was cancelled after 00:01:12: GPU 0 idle"),
        ("Queued", "Reservation: GPU 0", "was stopped after 00:01:12: GPU 0"),
        ("Queued", "Preempted: 42", "was preempted after 00:01:12"),
        ("Failed", "Preempted: spot notice", "was preempted after 00:01:12: spot notice"),
        ("Failed", "ExitCode:3", "exited with code 3 after 00:01:12"),
        ("Failed", "Signal:9", "was killed by signal 9 (Killed) after 00:01:12"),
        ("Failed", "OutOfMemory: used 9 of 8", "ran out of memory after 00:01:12: used 9 of 8"),
        ("Failed", "StartFailed: no such file", "could not start: no such file"),
        ("Failed", "Lost", "was lost after 00:01:12: its end was not observed"),
        ("Failed", "NodeFail", "ended as Failed after 00:01:12: NodeFail"),
        ("Failed", "Strange {}", "ended as Failed after 00:01:12: Strange {}"),
    ],
)  # fmt: skip
def test_each_end_has_its_words(state, reason, text):
    job = running(1, time_limit_s=120)
    assert job.started_boot is not None and job.key == job_key(1)
    job.user, job.stopping, job.reason = "ann", JobState(state), parse(reason)
    assert spell_end(job, job.started_boot + 72.0) == text
    if state != "Queued":
        job.state, job.stopping, job.ran_s = JobState(state), None, 72.0
        assert spell_end(job, 0.0) == text
