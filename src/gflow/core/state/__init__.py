"""The engine's memory: jobs, the queue, the machine, dependencies, quotas, fair share, runtime estimates.

Nothing here decides. Modules of this package import no other package of `core`.
"""
