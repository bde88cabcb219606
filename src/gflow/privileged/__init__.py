"""What the daemon does with root's rights besides running jobs: the port, and its implementation.

`tests/unit/test_privilege_boundary.py` lists all modules that use root's rights over other users: these, some
of `gflow.targets`, and `gpu/owners`, which reads the environments of processes.
"""
