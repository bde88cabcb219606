"""gflow: a job scheduler for the GPUs of one machine, with Slurm clusters as further targets.

    import gflow
    job = gflow.submit("python train.py", gpus=1)
    job.wait()

Only the public names of the Python library belong here. They are loaded on first access, because the command
line imports this package on every call.
"""

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from gflow.client.refusal import DaemonError as DaemonError
    from gflow.client.refusal import Error as Error
    from gflow.errors import Forbidden as Forbidden
    from gflow.errors import NotFound as NotFound
    from gflow.errors import ReadOnly as ReadOnly
    from gflow.errors import Refused as Refused
    from gflow.errors import TooLarge as TooLarge
    from gflow.errors import TooMany as TooMany
    from gflow.errors import Unauthorized as Unauthorized
    from gflow.errors import Unreachable as Unreachable
    from gflow.errors import UsageError as UsageError
    from gflow.library import aio as aio
    from gflow.library.executor import Executor as Executor
    from gflow.library.executor import map as map
    from gflow.library.job import Job as Job
    from gflow.library.job import JobFailed as JobFailed
    from gflow.library.job import JobList as JobList
    from gflow.library.job_sweep import Sweep as Sweep
    from gflow.library.jobs import gpu_memory as gpu_memory
    from gflow.library.jobs import jobs as jobs
    from gflow.library.jobs import submit as submit
    from gflow.library.jobs import sweep as sweep
    from gflow.library.jobs import wait as wait
    from gflow.library.machine_report import doctor as doctor

__version__ = "0.1.0"
_ERRORS = ("Forbidden", "NotFound", "ReadOnly", "Refused", "TooLarge", "TooMany", "Unauthorized",
           "Unreachable", "UsageError")  # fmt: skip
_PLACES = dict.fromkeys(("gpu_memory", "jobs", "submit", "sweep", "wait"), "library.jobs")
_PLACES |= dict.fromkeys(("Job", "JobFailed", "JobList"), "library.job")
_PLACES |= dict.fromkeys(("Executor", "map"), "library.executor") | {"Sweep": "library.job_sweep"}
_PLACES["doctor"] = "library.machine_report"
_PLACES |= dict.fromkeys(_ERRORS, "errors") | dict.fromkeys(("DaemonError", "Error"), "client.refusal")


def __getattr__(name: str) -> object:
    if name == "aio":
        return __import__("gflow.library.aio", fromlist=("aio",))
    if name not in _PLACES:
        raise AttributeError(f"module 'gflow' has no attribute {name!r}")
    return getattr(__import__(f"gflow.{_PLACES[name]}", fromlist=(name,)), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES, "aio"])
