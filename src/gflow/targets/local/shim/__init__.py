"""The Python shim: one process for each running job, which starts, supervises and ends it.

Uses the standard library only. `targets/local/native` is the native shim: the same in C, for jobs without
special demands.
"""
