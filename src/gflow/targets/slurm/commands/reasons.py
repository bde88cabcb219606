"""Explanations of Slurm's reason codes. A code that is not listed is shown as Slurm prints it."""

from __future__ import annotations

REASONS = {
    "Resources": "the GPUs, CPUs or nodes it needs are busy",
    "Priority": "others are before it in Slurm's queue",
    "Dependency": "it waits for another Slurm job",
    "BeginTime": "Slurm starts it later",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held in Slurm",
    "JobArrayTaskLimit": "as many tasks of it run as may",
    "PartitionConfig": "it asks for more than the partition allows; another partition, or less time or nodes",
    "PartitionTimeLimit": "it asks for more time than the partition allows; ask for less with --time",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is switched off",
    "ReqNodeNotAvail": "nodes it needs are down, drained or reserved",
    "Reservation": "its reservation has not begun",
    "Licenses": "a licence it needs is in use",
    "NodeDown": "a node it needs is down",
    "BadConstraints": "no node has what its constraint asks for",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its quality of service is not valid",
    "AssociationJobLimit": "its account runs as many jobs as it may",
    "AssocGrpGRES": "its account uses as many GPUs as it may",
    "AssocGrpCpuLimit": "its account uses as many CPUs as it may",
    "AssocGrpMemLimit": "its account uses as much memory as it may",
    "AssocGrpNodeLimit": "its account uses as many nodes as it may",
    "AssocGrpJobsLimit": "its account runs as many jobs as it may",
    "AssocMaxJobsLimit": "its account runs as many of your jobs as it may",
    "AssocMaxWallDurationPerJobLimit": "it asks for more time than its account allows",
    "QOSMaxGRESPerUser": "you use as many GPUs as the quality of service allows",
    "QOSMaxJobsPerUserLimit": "you run as many jobs as the quality of service allows",
    "QOSGrpGRES": "the quality of service has no GPUs left",
    "QOSGrpNodeLimit": "the quality of service has no nodes left",
    "QOSMaxWallDurationPerJobLimit": "it asks for more time than the quality of service allows",
    "QOSMaxNodePerUserLimit": "you use as many nodes as the quality of service allows",
    "AssocMaxSubmitJobLimit": "you have as many jobs in Slurm as your account allows; gflow keeps the job",
    "AssocGrpSubmitJobsLimit": "its account has as many jobs in Slurm as it may; gflow keeps the job",
    "QOSMaxSubmitJobPerUserLimit": "you have as many jobs in Slurm as its QOS allows; gflow keeps the job",
    "QOSGrpSubmitJobsLimit": "its QOS has as many jobs in Slurm as it may; gflow keeps the job",
    "DependencyNeverSatisfied": "it waits for a Slurm job that failed",
    "Cleaning": "an earlier run of it is being tidied up",
    "launch failed requeued held": "its start failed on the node; look at Slurm's log, or submit it again",
    "SlurmUnreachable": "the Slurm controller does not answer; gflow goes on trying",
}

# Slurm has some eighty limits, each with its own reason code. These are matched by prefix.
LIMITS = {
    "AssocGrp": "all jobs of its account together have as much as they may; gjob why names the limits",
    "AssocMax": "its account allows you or one job no more; gjob why names the limits",
    "QOSGrp": "all jobs of its quality of service have as much as they may; gjob why names the limits",
    "QOSMax": "its quality of service allows you or one job no more; gjob why names the limits",
    "QOSMin": "its quality of service wants jobs to ask for more; gjob why names the limits",
}


def in_words(reason: str) -> str:
    """Format a reason as `Code: explanation`; the bare code if there is no explanation."""
    code, comma, _ = (part.strip() for part in reason.partition(","))
    if comma and " " in code:  # a sentence of Slurm, not a code with details
        return reason
    words = REASONS.get(code) or REASONS.get(code.removeprefix("Max").removesuffix("Limit"), "")
    words = words or next((text for begin, text in LIMITS.items() if code.startswith(begin)), "")
    return f"{code}: {words}" if words else code or "Pending"
