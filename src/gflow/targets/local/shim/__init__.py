"""The shim: one process for each running job, which starts, supervises and ends it.

It needs the standard library alone. `targets/local/native` is its twin in C for plain jobs.
"""
