"""The program of an executor's job: `python -m gflow.library.worker FOLDER [NAME]`."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from gflow.library.calls import MAP, Outcome, read_call, write_outcome


def main(folder: Path, name: str) -> int:
    """Run the call and write its outcome. If the function raises, the job fails."""
    try:
        function, args, kwargs = read_call(folder, name)
        outcome = Outcome(function(*args, **kwargs), None, "")
    except BaseException as error:
        traceback.print_exc()
        outcome = Outcome(None, error, traceback.format_exc())
    sys.stdout.flush()
    write_outcome(folder, name, outcome)
    return 0 if outcome.error is None else 1


if __name__ == "__main__":
    which = sys.argv[2] if len(sys.argv) > 2 else f"{MAP}-{os.environ['GFLOW_ARRAY_TASK_ID']}"
    sys.exit(main(Path(sys.argv[1]), which))
