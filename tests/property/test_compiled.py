"""The compiled engine decides what the plain one does. (It takes a minute to compile it.)"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPLAY = """
from random import Random
from gflow.core import engine
from gflow.simulate.replay import POLICIES
from gflow.simulate.replay import Replay
from gflow.simulate.trace import Entry

dice = Random(8)
pick = dice.choice
entries = sorted(
    Entry(dice.uniform(0, 9e5), dice.expovariate(1 / 9000), pick((1, 1, 1, 2, 4, 8)), pick("abc"), pick("xy"))
    for _ in range(1500)
)
for name, (_, policy) in POLICIES.items():
    print(name, [one.start for one in Replay(entries, 8, policy).run()])
print(engine.__file__.endswith(".so"))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    environ = os.environ | {"MYPYC_OPT_LEVEL": "0"}
    line = [sys.executable, ROOT / "scripts/compile", folder]
    subprocess.run(line, check=True, capture_output=True, env=environ)
    return folder


def said(source: Path, *words: str) -> str:
    environ = os.environ | {"PYTHONPATH": f"{source}:{ROOT}"}
    return subprocess.run(
        [sys.executable, *words], env=environ, cwd=source, check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.slow
def test_compiled_engine_decides_the_same(compiled):
    *plain, is_plain = said(ROOT / "src", "-c", REPLAY).splitlines()
    *fast, is_fast = said(compiled, "-c", REPLAY).splitlines()
    assert (is_plain, is_fast) == ("False", "True")
    assert fast == plain


@pytest.mark.slow
def test_compiled_engine_survives_the_search(compiled):
    assert "seed 5: 3 worlds" in said(compiled, "-m", "tests.property.fuzz", "--seed", "5", "--steps", "3000")


@pytest.mark.slow
def test_benchmark_of_etas_runs_with_the_compiled_engine(compiled, tmp_path):
    trace = tmp_path / "archive.swf"
    trace.write_text(
        "".join(f"{n} {n * 100} 0 {n % 7}00 2 1 -1 2 900 -1 1 1 1 1 -1 1 -1 -1\n" for n in range(1, 200))
    )
    fast = said(compiled, "-m", "benchmarks.why", str(trace), "--gpus", "4", "--load", "2")
    assert fast == said(ROOT / "src", "-m", "benchmarks.why", str(trace), "--gpus", "4", "--load", "2")
    assert int(fast.split(" asked")[0].split()[-1]) > 20
