"""The rights with which root reads files of other users."""

from __future__ import annotations

import os


def become_owner(uid: int) -> None:
    """As root, drop to the user who controls the files that are read next and could point them anywhere."""
    import pwd

    if os.geteuid() == 0 and uid:
        owner = pwd.getpwuid(uid)
        os.initgroups(owner.pw_name, owner.pw_gid)
        os.setgid(owner.pw_gid)
        os.setuid(uid)
