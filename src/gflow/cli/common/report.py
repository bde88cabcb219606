"""Report a failed command: one sentence, a hint and the exit code.

An unexpected exception is reported as a bug; its traceback goes to a file. `gbatch` without a daemon, on a
terminal, offers to start one.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback

from gflow import __version__, paths
from gflow.client import hot_path, no_daemon
from gflow.errors import GflowError, clean_json

# Programs whose --output is a format and not a file, and the ways to request JSON.
FORMS = ("gqueue", "gstats")
JSON = {"json", "-ojson", "--output=json"}


def report(program: str, error: Exception, words: list[str]) -> int:
    """Print the error and return its exit code. With `--json` it is an object on standard output."""
    if isinstance(error, BrokenPipeError):
        return 1  # `gflowd config | head`: the reader has closed the pipe
    if not isinstance(error, GflowError):
        from gflow.cli.common.report import bug

        error = bug(program, error, words)
    if "--json" in words or (program in FORMS and JSON.intersection(words)):
        from gflow.wire.answers.problems import error_view
        from gflow.wire.encoding import encode

        sys.stdout.write(clean_json(encode(error_view(error))).decode() + "\n")
    else:
        hint = error.hint
        if error.advice is not None:
            from gflow.wire.shell_words import spell_hint

            hint = spell_hint(error)
        sys.stderr.flush()
        text = f"{program}: {error.message}\n" + (f"{hint}\n" if hint else "")
        hot_path.write_folded(2, text.encode(errors="backslashreplace"))
    return error.exit_code


def is_answerable(words: list[str]) -> bool:
    """Whether to offer to start a daemon: on a terminal, where no system-wide daemon is set up."""
    is_interactive = "--json" not in words and os.isatty(0) and os.isatty(2)
    return is_interactive and not no_daemon.has_system_daemon(hot_path.getenv)


def is_start_wanted() -> bool:
    """Ask whether to start a daemon."""
    sys.stderr.write("gbatch: the gflow daemon is not running. Start it now? [Y/n] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    return bool(answer) and answer.strip().lower() in ("", "y", "yes")  # no line at all: Ctrl-D


class Bug(GflowError):
    """This is a bug in gflow."""


def bug(program: str, error: BaseException, words: list[str]) -> Bug:
    """Write the traceback of an unexpected exception to a file; return the error to show."""
    what = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    text = f"{program} {__version__}, Python {sys.version}\n{' '.join(words)}\n\n"
    text += "".join(traceback.format_exception(error))
    return Bug(
        f"this is a bug in gflow: {what}", hint=f"please report it, with {_write_crash(program, text)}"
    )


def _write_crash(program: str, text: str) -> str:
    """Write the crash report; return its path, or the report itself if it cannot be written."""
    name = time.strftime(f"crash-{program}-%Y%m%d-%H%M%S-{os.getpid()}.txt")
    for folder in (paths.log_dir(os.environ.get), tempfile.gettempdir()):
        path = os.path.join(folder, name)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            # O_EXCL: other users can write to the temporary folder.
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
        except OSError:
            continue
        return path
    return f"these lines:\n{text}"
