"""Clients of the daemon: `fast` for the command line, `sdk` for Python programs."""
