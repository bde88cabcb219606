"""gflow: a job scheduler for the GPUs of one machine, with Slurm clusters as further targets.

    import gflow
    job = gflow.submit("python train.py", gpus=1)
    job.wait()

Only the public names of the Python library belong here. They are loaded on first access, because the command
line imports this package on every call.
"""

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from gflow.library import aio as aio
    from gflow.library.executor import Executor as Executor
    from gflow.library.executor import map as map
    from gflow.library.jobs import (
        Job as Job,
    )
    from gflow.library.jobs import (
        JobFailed as JobFailed,
    )
    from gflow.library.jobs import (
        jobs as jobs,
    )
    from gflow.library.jobs import (
        submit as submit,
    )
    from gflow.library.jobs import (
        sweep as sweep,
    )
    from gflow.library.jobs import (
        wait as wait,
    )

__version__ = "0.1.0"
_PLACES = dict.fromkeys(("Job", "JobFailed", "jobs", "submit", "sweep", "wait"), "jobs")
_PLACES |= {"Executor": "executor", "map": "executor"}


def __getattr__(name: str) -> object:
    if name == "aio":
        return __import__("gflow.library.aio", fromlist=("aio",))
    if name not in _PLACES:
        raise AttributeError(f"module 'gflow' has no attribute {name!r}")
    return getattr(__import__(f"gflow.library.{_PLACES[name]}", fromlist=(name,)), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES, "aio"])
