"""Accounting: how much each user, project and group has and has used. Quotas and fair share rest on it."""

from __future__ import annotations

from collections import Counter

from gflow.core.model import Job, Spec
from gflow.core.policy import Policy
from gflow.core.state.fair_share import FairShare
from gflow.core.state.machine import Machine
from gflow.core.state.quotas import QuotaUsage, exceeded, never_fits


class Accounting:
    """Quotas and their usage, fair share, and the jobs of each user and each group."""

    def __init__(self, policy: Policy, machine: Machine) -> None:
        self.quota_usage = QuotaUsage(policy.quotas)
        self.fair_share = FairShare(policy.half_life_s, machine)
        # uid -> number of the user's active jobs; an array counts as one, and so does each running task.
        self.active_jobs: Counter[int] = Counter()
        # Group id -> how many of its jobs run.
        self.group_running: Counter[int] = Counter()

    def add(self, job: Job) -> None:
        """Count a new job."""
        self.quota_usage.add(job)
        self.count_active(job.uid, 1)

    def drop(self, job: Job) -> None:
        """Remove a job that has become final."""
        self.quota_usage.add(job, -1)
        self.count_active(job.uid, -1)

    def count_active(self, uid: int, more: int) -> None:
        """Add to the number of a user's active jobs."""
        now = self.active_jobs.get(uid, 0) + more
        if now:
            self.active_jobs[uid] = now
        else:
            del self.active_jobs[uid]

    def regroup(self, old: int | None, new: int | None) -> None:
        """Move a running job from one group to another; None: from none, or to none."""
        if new is not None:
            self.group_running[new] = self.group_running.get(new, 0) + 1
        if old is not None:
            left = self.group_running[old] - 1
            if left:
                self.group_running[old] = left
            else:
                del self.group_running[old]

    def over_quota(self, job: Job, policy: Policy) -> str | None:
        """The quota that keeps this job from starting, in words; None: none does."""
        usual = policy.most_running
        if not usual and not self.quota_usage.is_limited:
            return None
        return exceeded(self.quota_usage, job, usual if job.uid else 0, is_private=policy.is_private)

    def never_within_quota(self, user: str, spec: Spec, policy: Policy) -> str | None:
        """Why a quota keeps such a job of this user from ever starting, in words; None: none does."""
        if not self.quota_usage.is_limited:
            return None
        return never_fits(self.quota_usage.quotas, user, spec, is_private=policy.is_private)
