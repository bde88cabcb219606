"""What the daemon does with root's rights besides running jobs: the port, and its implementation.

Together with `gflow.targets` these are the only modules that use root's rights over other users: a test holds
that (`tests/unit/test_privilege_boundary.py`).
"""
