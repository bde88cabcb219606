"""The Python library: `gflow.submit`, `gflow.jobs`, `gflow.map`, `gflow.Executor`, `gflow.aio`."""
