"""gflow for Python programs: `gflow.submit`, `gflow.jobs`, `gflow.map`, `gflow.Executor`, `gflow.aio`."""
