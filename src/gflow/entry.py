"""The entry point of every command: the hot path for a plain `gbatch`, `gflow.cli` for the rest.

It imports no more than the hot path needs.
"""

from __future__ import annotations

import sys

from gflow.client.hot_path import leave, submit

TYPE_CHECKING = False  # typing costs 15 ms to import, and this runs inside every gbatch
if TYPE_CHECKING:
    from typing import NoReturn


def main(program: str) -> NoReturn:
    """Run a program with the words of this process, and end the process with its exit code."""
    words = sys.argv[1:]
    try:
        code = submit(words) if program == "gbatch" else None
        if code is None:
            from gflow.cli.main import run

            code = run(program, words)
    except Exception as error:
        from gflow.cli.main import fail

        code = fail(program, error, words)
    except KeyboardInterrupt:
        code = 130
    leave(code)
