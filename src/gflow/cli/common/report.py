"""How a command that failed says so: one sentence, a hint, the right exit code.

No daemon is running and somebody sits there: offer to start one.

A bug in a command: the traceback goes into a file, the person gets a sentence.
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

# Programs whose --output is a form, and not a file; and how it is asked to be JSON.
FORMS = ("gqueue", "gstats")
JSON = {"json", "-ojson", "--output=json"}


def report(program: str, error: Exception, words: list[str]) -> int:
    """Print the error; its exit code. `--json` gets an object on stdout."""
    if isinstance(error, BrokenPipeError):
        return 1  # `gflowd config | head`: whoever read has seen enough
    if not isinstance(error, GflowError):
        from gflow.cli.common.report import bug

        error = bug(program, error, words)
    if "--json" in words or (program in FORMS and JSON.intersection(words)):
        from gflow.wire.views import encode, error_view

        sys.stdout.write(clean_json(encode(error_view(error))).decode() + "\n")
    else:
        sys.stderr.write(f"{program}: {error.message}\n" + (f"{error.hint}\n" if error.hint else ""))
        sys.stderr.flush()
    return error.exit_code


def is_answerable(words: list[str]) -> bool:
    """Whether there is a person to ask, and a daemon of their own is what they would want."""
    is_asked = "--json" not in words and os.isatty(0) and os.isatty(2)
    return is_asked and not no_daemon.is_machine_served(hot_path.getenv)


def start() -> int | None:
    """Ask; if the answer is yes, start a daemon. Its exit code, or None if the answer is no."""
    sys.stderr.write("gbatch: the gflow daemon is not running. Start it now? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        return None
    from gflow.cli.gflowd import run as gflowd

    return gflowd(["up"])


class Bug(GflowError):
    """This is a bug in gflow."""


def bug(program: str, error: BaseException, words: list[str]) -> Bug:
    """The error to show for one that nobody expected, after writing down where it came from."""
    what = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    text = f"{program} {__version__}, Python {sys.version}\n{' '.join(words)}\n\n"
    text += "".join(traceback.format_exception(error))
    return Bug(f"this is a bug in gflow: {what}", hint=f"please report it, with {_kept(program, text)}")


def _kept(program: str, text: str) -> str:
    name = time.strftime(f"crash-{program}-%Y%m%d-%H%M%S-{os.getpid()}.txt")
    for folder in (paths.log_dir(os.environ.get), tempfile.gettempdir()):
        path = os.path.join(folder, name)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            # Exclusively: the temporary folder is everybody's.
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
        except OSError:
            continue
        return path
    return f"these lines:\n{text}"
