"""Refusals of sbatch, in the words of Slurm and of sites."""

from __future__ import annotations

import pytest

from gflow.targets.slurm.commands.refusals import Refusal, classify, limit_of

POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@pytest.mark.parametrize(
    "text",
    [
        "Invalid partition name specified",
        "Invalid account or account/partition combination specified",
        "Invalid qos specification",
        "Invalid generic resource (gres) specification",
        "Invalid job array specification",
        "Requested node configuration is not available",
        "Memory specification can not be satisfied",
        "CPU count per node can not be satisfied",
        "More processors requested than permitted",
        "Requested time limit is invalid (missing or exceeds some limit)",
        "User's group not permitted to use this partition",
        "Access/permission denied",
        "sbatch: unrecognized option '--gpuz=1'",
        "sbatch cannot be run in /gone: No such file or directory",
        f"sbatch: error: AssocMaxWallDurationPerJobLimit\nsbatch: error: {POLICY}",
        f"sbatch: error: QOSMaxGRESPerJob\nsbatch: error: {POLICY}",
    ],
)
def test_permanent_refusals(text):
    assert classify(text) is Refusal.PERMANENT


@pytest.mark.parametrize(
    "text",
    [
        POLICY,
        f"sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: {POLICY}",
        f"sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: {POLICY}",
        f"sbatch: error: AssocGrpSubmitJobsLimit\nsbatch: error: Batch job submission failed: {POLICY}",
        "job_submit: backend busy, try later",
        "Slurm temporarily unable to accept job, sleeping and retrying",
        "Required partition not available (inactive or drain)",
        "Requested reservation not usable now",
        "I/O error writing script/environment to file",
        "Invalid authentication credential",
        "there is no sbatch here",
    ],
)
def test_refusals_that_pass(text):
    assert classify(text) is Refusal.PASSING


def test_anything_else_is_not_known():
    assert classify("sbatch: error: job_submit: please ask the helpdesk") is Refusal.UNKNOWN


def test_a_limit_has_a_name():
    assert limit_of(f"sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: {POLICY}") == (
        "AssocMaxSubmitJobLimit"
    )
    assert limit_of("Invalid partition name specified: PartOfIt") == ""
