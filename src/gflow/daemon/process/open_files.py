"""The limit of open files of the daemon."""

from __future__ import annotations

import resource


def raise_open_files() -> None:
    """Raise the soft limit of open files: a running job needs a descriptor. Jobs get the original limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
