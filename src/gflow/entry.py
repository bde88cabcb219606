"""The entry point of every command: the hot path, where the daemon reads it; `gflow.cli` for the rest.

It imports no more than the hot path needs.
"""

from __future__ import annotations

import sys

from gflow.client.hot_path import leave, run_in_daemon

TYPE_CHECKING = False  # typing costs 15 ms to import, and this runs inside every command
if TYPE_CHECKING:
    from typing import NoReturn


def main(program: str, lost: str = "") -> NoReturn:
    """Run a program with the words of this process, and end the process with its exit code.

    `lost`: the token of a request of the native client, whose answer was lost; "-": the daemon does not serve
    this command.
    """
    words = sys.argv[1:]
    try:
        code = run_in_daemon(program, words, lost)
        if code is None:
            from gflow.cli.main import run

            code = run(program, words)
    except Exception as error:
        from gflow.cli.main import fail

        code = fail(program, error, words)
    except KeyboardInterrupt:
        code = 130
    leave(code)
