"""Every parser: an answer, or one printable sentence. Never another error, never a long wait."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gflow.config.load import load
from gflow.config.table import SETTINGS
from gflow.core.task_set import parse_tasks
from gflow.daemon.api import rlimits, tcp_gate
from gflow.daemon.auth.tokens import Tokens
from gflow.errors import GflowError
from gflow.gpu.simulated import simulated_gpus
from gflow.options import directives, slurm
from gflow.options.commands.gqueue_options import OPTIONS as GQUEUE
from gflow.options.commands.gstats_options import OPTIONS as GSTATS
from gflow.options.job_options import CAPTURE, GBATCH, JOB, SLURM, Option
from gflow.options.lists import parse_indices
from gflow.options.parse import parse, spellings
from gflow.options.times import parse_since, parse_time
from gflow.options.values import read as read_option
from gflow.targets.local import protocol, run_record
from gflow.wire import requests
from gflow.wire.job_selectors import parse_selectors
from tests.fuzz.texts import JSON, TEXT

# On a loaded machine; most take microseconds.
PATIENCE_S = 5.0
NOW = datetime(2026, 1, 31, 12, 0)
TABLES = {"gbatch": GBATCH, "gqueue": GQUEUE, "gstats": GSTATS}
REQUESTS = [kind for name, kind in vars(requests).items() if name.endswith("Request")]


def held(act: Callable[[], Any]) -> Any:
    """What comes of it, which may be a refusal in one printable sentence."""
    begun = time.monotonic()
    try:
        return act()
    except GflowError as error:
        assert error.message and error.message.isprintable() and len(error.message) < 2000, error.message
        assert error.exit_code in (1, 2)
        return None
    finally:
        assert time.monotonic() - begun < PATIENCE_S


def words_of(table: tuple[Option, ...]) -> st.SearchStrategy[list[str]]:
    names = st.sampled_from(sorted(spellings(table)))
    word = names | TEXT | st.tuples(names, TEXT).map("=".join)
    return st.lists(word, max_size=6)


@pytest.mark.parametrize("program", TABLES)
@given(data=st.data())
def test_command_lines_are_read_or_refused(program: str, data: st.DataObject) -> None:
    words = data.draw(words_of(TABLES[program]))
    held(lambda: parse(words, TABLES[program], until_word=data.draw(st.booleans())))


@pytest.mark.parametrize("option", [*JOB, *CAPTURE], ids=lambda option: option.name)
@given(value=TEXT | JSON)
def test_option_values(option: Option, value: Any) -> None:
    if isinstance(value, str) or option in JOB:
        held(lambda: read_option(option, value))


@given(
    st.lists(words_of(JOB + CAPTURE + SLURM).map(" ".join), max_size=5),
    st.sampled_from(["# GFLOW ", "#SBATCH "]),
)
def test_scripts_are_read_or_refused(lines: list[str], mark: str) -> None:
    script = "#!/bin/sh\n" + "".join(f"{mark}{line}\n" for line in lines)
    held(lambda: directives.read(script, "x.sh"))
    held(lambda: slurm.sbatch(script, "x.sh"))


@pytest.mark.parametrize(
    "parser",
    [
        lambda text: parse_time(text, NOW), lambda text: parse_since(text, NOW), parse_indices,
        simulated_gpus, lambda text: parse_selectors([text]), tcp_gate._host_name,
    ],
    ids=["time", "since", "indices", "simulated", "selection", "host"],
)  # fmt: skip
@given(text=TEXT)
def test_small_grammars_are_read_or_refused(parser: Callable[[str], Any], text: str) -> None:
    held(lambda: parser(text))


@given(TEXT)
def test_tasks_of_an_array_that_was_accepted_are_read(text: str) -> None:
    (option,) = (option for option in JOB if option.name == "array")
    found = held(lambda: read_option(option, text))
    if found:
        assert len(parse_tasks(found.partition("%")[0])) > 0


@given(st.lists(st.tuples(st.sampled_from([setting.key for setting in SETTINGS]), JSON), max_size=4), TEXT)
def test_configuration_files(tmp_path_factory: Any, pairs: list[tuple[str, Any]], tail: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.toml"
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in pairs) + tail
    path.write_text(text, errors="replace")
    held(lambda: load({}, {}, str(path), "/no/such/file"))


@given(
    st.dictionaries(st.sampled_from([name for one in SETTINGS for name in one.variables]), TEXT, max_size=3)
)
def test_variables_are_read_or_refused(environ: dict[str, str]) -> None:
    held(lambda: load({}, environ, "", "/no/such/file"))


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
@given(body=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_requests_are_read_or_refused(kind: type, body: bytes) -> None:
    held(lambda: requests.decode(body, kind))


@pytest.mark.parametrize("depth", [10, 1000, 200_000])
def test_deep_requests(depth: int) -> None:
    held(lambda: requests.decode(b'{"options":' + b"[" * depth + b"]" * depth + b"}", requests.JobRequest))


@given(
    st.lists(
        st.sampled_from([b"shim ", b"job ", b"end ", b"- ", b"0 ", b"\n", b"x "]) | st.binary(max_size=9)
    )
)
def test_run_records(parts: list[bytes]) -> None:
    run_record.read(b"".join(parts))


@given(st.binary(max_size=200))
def test_messages_between_daemon_and_shim(sent: bytes) -> None:
    """They are our own; what is cut off or odd is refused or waited for, and is no endless loop."""
    try:
        protocol.unpack(bytearray(sent))
    except ValueError:
        pass


@given(TEXT)
def test_tokens_are_read_or_refused(text: str) -> None:
    assert Tokens(Path("/no/such/file")).find(text) is None
    assert Tokens(Path("/no/such/file")).find(f"gflow_{text}") is None


@given(st.text(max_size=200))
def test_limits_of_a_process(text: str) -> None:
    """Written by the kernel; a kernel to come may write it otherwise."""
    try:
        rlimits.parse(text)
    except ValueError:
        pass
