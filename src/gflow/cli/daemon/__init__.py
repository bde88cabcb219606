"""Commands of `gflowd`: start, stop, configure, and install as a service.

The daemon itself is `gflow.daemon`, which these modules import only to run or configure it.
"""
