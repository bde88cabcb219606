"""The training toolkit: memory prediction, training runs, launching ranks, scaling measurements.

Nothing of the scheduler imports it except the command line. `gflow.fit` and `gflow.train` are its public
names.
"""
