"""Fuzz until the time is over or something is found: python -m tests.fuzz [SECONDS]"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

EXAMPLES = 150


def main() -> int:
    end = time.monotonic() + float(sys.argv[1] if len(sys.argv) > 1 else 1800)
    rounds = 0
    while time.monotonic() < end:
        rounds, seed = rounds + 1, random.randrange(2**32)
        print(f"round {rounds}, seed {seed}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "tests/fuzz", f"--hypothesis-seed={seed}"],
            env=os.environ | {"GFLOW_FUZZ_EXAMPLES": str(EXAMPLES), "GFLOW_FUZZ_SEED": str(seed)},
        )
        if done.returncode:
            return 1
    print(f"{rounds} rounds of {EXAMPLES} examples for each test, and nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
