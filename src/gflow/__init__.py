"""gflow runs GPU work for people, on one shared box or on a Slurm cluster.

Importing this package must stay cheap: the command line loads it on every call.
"""

__version__ = "0.1.0"
