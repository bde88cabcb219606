"""Scripts for another machine's shell, and the folder there, against the shells of this machine."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gflow.targets.slurm.shared_folder import Claim, Exit, RunFile
from gflow.targets.slurm.ssh.remote_folder import RemoteFolder, Unreachable
from gflow.targets.slurm.ssh.remote_shell import (
    FIND_SLURM,
    command_script,
    emit,
    export,
    make_frame,
    program,
    quote,
)
from gflow.targets.slurm.ssh.ssh_runner import ScriptResult

SHELLS = [
    words
    for words in (["dash"], ["bash", "--posix"], ["busybox", "sh"], ["zsh", "--emulate", "sh"])
    if shutil.which(words[0])
]


class LocalShell:
    """Runs scripts in a shell here. `sent`, `received`: bytes after which the connection breaks."""

    def __init__(self, words: list[str], home: str) -> None:
        self.words, self.home = words, home
        self.sent: int | None = None
        self.received: int | None = None
        self.calls = 0
        self.bytes_sent = self.bytes_received = 0

    def run_script(self, body: str, *, timeout_s: float, umask: int = 0o077) -> ScriptResult:
        self.calls += 1
        frame = make_frame()
        text = program([frame.section(body, umask)])
        env = {"PATH": "/usr/bin:/bin", "HOME": self.home}
        done = subprocess.run(self.words, input=text[: self.sent], capture_output=True, env=env, cwd="/")
        self.bytes_sent, self.bytes_received = len(text), len(done.stdout)
        code, output = frame.parse(done.stdout[: self.received])
        return ScriptResult(code, output, frame.parse_error(done.stderr) if code is not None else "cut")


@pytest.fixture(params=SHELLS, ids=lambda words: words[0])
def shell(request, tmp_path) -> LocalShell:
    return LocalShell(request.param, str(tmp_path))


def folder_of(shell: LocalShell, base: str = "~/a folder's $(x)") -> RemoteFolder:
    folder = RemoteFolder(shell, base, lambda: "abc", 10, clock=itertools.count(0, 100).__next__)
    assert folder.daemon_id() == "abc"
    return folder


def test_words_reach_the_shell_unchanged(shell):
    hostile = [
        "",
        " ",
        "a\nb",
        "'",
        '"',
        "\\",
        "$(touch x)",
        "`id`",
        "-n",
        "--",
        "*",
        "~",
        "!!",
        "\udcff\udc80",
        "é",
        ";",
    ]
    script = command_script(["printf", "[%s]", *hostile], {}, b"", "/")
    result = shell.run_script(script, timeout_s=10)
    assert result.output == "".join(f"[{word}]" for word in hostile).encode(errors="surrogateescape")
    variables = {"OK": "a\n'b\\", "BASH_FUNC_x%%": "() { :; }", "1A": "x", "A;id": "x"}
    assert [line.partition("=")[0] for line in export(variables)] == ["export OK"]
    with pytest.raises(ValueError, match="NUL"):
        quote("a\0b")


WORD = st.text(st.characters(exclude_characters="\0"), max_size=30).map(
    lambda text: text.encode(errors="surrogatepass").decode(errors="surrogateescape")
)


@settings(max_examples=60, deadline=None)
@given(words=st.lists(WORD, max_size=5), value=WORD, content=st.binary(max_size=300))
def test_generated_words_values_and_bytes_reach_the_shell_unchanged(words, value, content):
    script = command_script(["printf", "<%s>", *words, "end"], {"MINE": value}, b"", "/")
    script += '\nprintf "|%s|" "$MINE"\n' + emit(content)
    result = LocalShell(SHELLS[0], "/").run_script(script, timeout_s=10)
    expected = "".join(f"<{word}>" for word in [*words, "end"]) + f"|{value}|"
    assert result.output == expected.encode(errors="surrogateescape") + content


def test_every_byte_is_written_as_it_is(shell, tmp_path):
    content = bytes(range(256)) * 2 + b"no newline at the end"
    folder = folder_of(shell)
    folder.put("1.1", "script", content)
    assert open(folder.path("1.1", "script"), "rb").read() == content
    assert not (tmp_path / "x").exists()


def test_folder_is_closed_and_tells_where_it_is(shell, tmp_path):
    folder = folder_of(shell)
    assert folder.folder == f"{tmp_path}/a folder's $(x)/runs/abc"
    assert folder.expand("~/x") == f"{tmp_path}/x"
    assert folder.expand("~gflow/logs/1.log") == f"{folder.folder}/logs/1.log"
    assert (tmp_path / "a folder's $(x)").stat().st_mode & 0o777 == 0o700
    assert folder.look() == {}


def test_token_claim_exit_and_withdrawal(shell, tmp_path):
    folder = folder_of(shell)
    folder.write(["1.1", "2.1", "3_4.1"], [RunFile("1.1", "script", b"x")])
    assert folder.look()["1.1"].has_token
    (tmp_path / folder.path("1.1", "ticket")).rename(folder.path("1.1", "claim.0.77"))
    assert folder.withdraw_all(["1.1", "2.1", "9.1"]) == {"1.1": False, "2.1": True, "9.1": True}
    found = folder.look()
    assert found["1.1"].claim == Claim(0, "77") and found["2.1"].withdrawn and found["3_4.1"].has_token
    (tmp_path / folder.path("1.1", "exit")).write_text("143 told\n")
    assert folder.look()["1.1"].exit and folder.read_exit("1.1") == Exit(143, True)
    calls = shell.calls
    assert folder.look()["1.1"].exit and shell.calls == calls + 1
    # A call whose answer was lost and that comes late makes no second token.
    folder.write(["1.1", "2.1"], [])
    assert not folder.look()["1.1"].has_token and not folder.look()["2.1"].has_token
    folder.clear(["1.1", "3_4.1"])
    assert set(folder.look()) == {"2.1", "9.1"}


def test_next_daemon_reads_the_answers_of_sbatch(shell):
    first = folder_of(shell)
    lines = first.note_asked("1.1", b"0 55\n1 56\n")
    assert shell.run_script(lines, timeout_s=10).code == 0
    second = folder_of(shell)
    assert second.look()["1.1"].was_submitted
    assert second.read_asked("1.1") == {0: "55", 1: "56"}


def test_error_there_is_an_error_here_with_its_words(shell, tmp_path):
    folder = folder_of(shell)
    shutil.rmtree(folder.folder)
    with pytest.raises(OSError) as found:
        folder.write(["1.1"], [])
    assert not isinstance(found.value, Unreachable)
    with pytest.raises(OSError):
        folder.look()


def test_request_cut_at_any_byte_has_no_effect_and_answer_cut_at_any_byte_is_unknown(shell, tmp_path):
    folder = folder_of(shell)
    folder.write(["5.1"], [])

    def request() -> None:
        folder.write(["1.1"], [RunFile("1.1", "script", b"#!/bin/sh\n}\nexit 0\n}\n" * 3)])

    request()
    size, answer = shell.bytes_sent, shell.bytes_received
    folder.clear(["1.1"])
    step = 1 if "dash" in shell.words else 29
    for shell.sent in range(len("{\n") + len(FIND_SLURM), size - 2, step):
        with pytest.raises(Unreachable):
            request()
        assert "1.1" not in _names(folder)
    shell.sent = None
    for shell.received in range(answer):
        with pytest.raises(Unreachable):
            request()
        assert "1.1" in _names(folder)  # done, and done once more by the next attempt
    shell.received = None
    request()
    assert folder.look()["1.1"].has_token


def _names(folder: RemoteFolder) -> set[str]:
    return {name.rpartition(".")[0] for name in os.listdir(folder.folder) if name[0].isdigit()}


def test_text_of_a_login_shell_before_and_after_the_output_is_dropped():
    frame = make_frame()
    begin, end = f"gflow-begin-{frame.nonce}\n", f"gflow-end-{frame.nonce} 3\n"
    assert frame.parse(f"Welcome!\n{begin}out{end}bye".encode()) == (3, b"out")
    assert frame.parse(f"{begin}out{end[:-1]}".encode()) == (None, b"")
    assert frame.parse(b"") == (None, b"")
