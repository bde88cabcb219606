"""The daemon, except that it caches answers of the user database without limit."""

from __future__ import annotations

import sys

from gflow.daemon.auth import users
from gflow.privileged import user_calls

users.ACCOUNT_S = user_calls.ACCOUNT_S = 1e9

if __name__ == "__main__":
    from gflow.cli.main import run as main

    sys.exit(main("gflowd", ["run", *sys.argv[1:]]))
