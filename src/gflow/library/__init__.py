"""The Python library: `gflow.submit`, `gflow.jobs`, `gflow.map`, `gflow.Executor`, `gflow.aio`.

Public names are exported by `gflow`. Requests to the daemon belong in `client`, training in `ml`.
"""
