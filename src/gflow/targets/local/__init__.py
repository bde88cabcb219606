"""Runs jobs on this machine, and lets them outlive the daemon.

daemon --fork/exec--> zygote --fork--> shim --spawn--> job

The zygote is a small, clean Python process that only forks shims: forking from it costs
a millisecond and carries over none of the daemon's files, threads or memory. A shim runs
one job at a time and is the parent of everything the job starts. It holds the lock of the
job's run record and writes the end into it, so a job needs no daemon to run or to end.

`zygote` and `shim` run under `python -I -S` and import nothing but the standard library.
"""
