"""The local target: runs jobs on this machine. Jobs survive the daemon.

daemon --fork/exec--> zygote --fork--> shim --spawn--> job

The zygote is a small Python process that only forks shims. A fork from it takes a millisecond and inherits
none of the daemon's files, threads or memory. A shim runs one job at a time and is the parent or subreaper of
everything that the job starts. It holds the lock of the job's run record and writes the end into it, so a job
needs no daemon to run or to end.

A job is killed in `shim/supervise.py`, or in its twin `native/supervise.c` for jobs of the native shim.

`zygote` and `shim` run under `python -I -S` and import only the standard library.
"""
