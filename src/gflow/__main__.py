"""`python -m gflow PROGRAM …`: the entry point where the shell scripts of the wheel are not installed."""

import sys

from gflow.cli.registry import PROGRAMS
from gflow.entry import main

if __name__ == "__main__":
    main(sys.argv.pop(1) if len(sys.argv) > 1 and sys.argv[1] in {"gflow", *PROGRAMS} else "gflow")
