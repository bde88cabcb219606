"""A bug in a command: the traceback goes into a file, the person gets a sentence."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback

from gflow import __version__
from gflow.errors import GflowError
from gflow.options import paths


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
