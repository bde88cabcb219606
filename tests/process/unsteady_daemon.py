"""The daemon for all users, except that its launcher replaces a scheduler however young it was."""

from __future__ import annotations

import sys

from gflow.daemon import launch

launch.STEADY_S = 0.0

if __name__ == "__main__":
    from gflow.cli.main import run as main

    sys.exit(main("gflowd", ["run", *sys.argv[1:]]))
