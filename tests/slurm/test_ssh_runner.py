"""The connection to a login node: a real sshd, users with other shells, hostile words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gflow.targets.slurm.ssh.ssh_runner import SshRunner
from tests.harness import Box
from tests.sshd import LoginNode, login_node

pytestmark = pytest.mark.slow


@pytest.fixture(params=["/bin/sh", "/usr/bin/tcsh", "/usr/bin/fish"])
def node(request: pytest.FixtureRequest):
    if not os.path.exists(request.param):
        pytest.skip(f"there is no {request.param} here")
    with login_node({"SITE": "there"}, shell=request.param) as found:
        yield found


def runner_of(node: LoginNode, box: Box, monkeypatch: pytest.MonkeyPatch) -> SshRunner:
    node.install(box)
    monkeypatch.setenv("PATH", box.env["PATH"])
    return SshRunner("login", Path(box.root) / "s")


def test_commands_get_exactly_their_words_input_and_variables(node, box, monkeypatch):
    ssh = runner_of(node, box, monkeypatch)
    monkeypatch.setenv("LC_SECRET", "not to be sent")
    hostile = ["a b", "-n", "$(id)", "`id`", "'", '"', "\\", "!x", "a\nb", "*", "", "\udcff", "é", "~", "%s"]
    result = ssh.run(
        ["sh", "-c", 'printf "<%s>" "$@"; cat; printf "|%s|%s" "$MINE" "$SITE"; id -un; env', "sh", *hostile],
        timeout_s=30,
        environ={"MINE": "x'$(id)"},
        input="in\n",
    )
    assert result.ok, result
    words = "".join(f"<{word}>" for word in hostile).encode(errors="surrogateescape").decode(errors="replace")
    assert result.text.startswith(f"{words}in\n|x'$(id)|there{node.person.pw_name}\n")
    assert "LC_SECRET" not in result.text
    assert not ssh.run(["false"], timeout_s=30, environ={}).ok
    assert ssh.run(["pwd"], timeout_s=30, environ={}, cwd="/nowhere").error.startswith("the command cannot")
    assert ssh.has("sh") and not ssh.has("no-such-program")
    assert ssh.control_path.is_socket() and ssh.control_path.parent.stat().st_mode & 0o777 == 0o700
    assert node.log().count("Accepted publickey") == 1  # all of these over one connection
