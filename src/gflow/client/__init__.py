"""The client of the daemon: requests, submissions, retries, event streams, logs and terminals.

Used by the command line and the Python library. Commands belong in `cli`, message formats in `wire`.
"""
