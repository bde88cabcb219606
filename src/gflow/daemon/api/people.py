"""Names of uids, by the machine's own list; never what a caller says."""

from __future__ import annotations

import pwd
from functools import lru_cache


@lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
