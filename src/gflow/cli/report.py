"""How a command that failed says so: one sentence, a hint, the right exit code."""

from __future__ import annotations

import sys

from gflow.errors import GflowError, clean_json

# Programs whose --output is a form, and not a file; and how it is asked to be JSON.
FORMS = ("gqueue", "gstats")
JSON = {"json", "-ojson", "--output=json"}


def report(program: str, error: Exception, words: list[str]) -> int:
    """Print the error; its exit code. `--json` gets an object on stdout."""
    if isinstance(error, BrokenPipeError):
        return 1  # `gflowd config | head`: whoever read has seen enough
    if not isinstance(error, GflowError):
        from gflow.cli.crash import bug

        error = bug(program, error, words)
    if "--json" in words or (program in FORMS and JSON.intersection(words)):
        from gflow.wire.views import encode, error_view

        sys.stdout.write(clean_json(encode(error_view(error))).decode() + "\n")
    else:
        sys.stderr.write(f"{program}: {error.message}\n" + (f"{error.hint}\n" if error.hint else ""))
        sys.stderr.flush()
    return error.exit_code
