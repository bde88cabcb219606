"""Completion in real shells, with the ids of live jobs."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.harness import Box

BASH = """
source <(gflow completion bash)
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_gflow
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def typed(box: Box, *shell: str, input: str | None = None) -> list[str]:
    done = subprocess.run(
        shell,
        env=box.env | {"TERM": "xterm"},
        cwd=box.work,
        input=input,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_bash_completes_options_values_and_live_jobs(daemon: Box) -> None:
    daemon.submit("--name", "train", "sleep", "60")
    (daemon.work / "notes.txt").touch()

    def offered(words: str) -> list[str]:
        return typed(daemon, "bash", "-c", BASH.format(words=words))

    assert offered("gbatch --gpu-t") == ["--gpu-type"]
    assert offered("gcancel ''") == ["1"]
    daemon.ok("gbatch", "--hold", "--name", "run_{lr}", "--param", "lr=1,2", "true")
    assert offered("gcancel g") == offered("gbatch --depends-on g") == offered("gjob results g") == ["g2"]
    assert typed(daemon, "gflow", "__complete", "2", "gjob", "wait", "g") == ["g2\trun_1, …"]
    assert offered("gqueue --states = Ru") == ["Running"]
    assert offered("gqueue -f NODELIST\\(") == ["NODELIST\\(REASON\\)"]
    assert offered("gqueue -s Running,Q") == ["Running,Queued"]
    assert offered("gbatch --output not") == ["notes.txt"]
    assert "sleep" in offered("gbatch sle")
    assert offered("gflow gq") == ["gqueue"]
    for _ in range(9):
        daemon.submit("--hold", "true")
    script = "compopt() { unsorted=$*; }\n" + BASH.format(words="gcancel ''") + 'echo "$unsorted"'
    assert typed(daemon, "bash", "-c", script) == [*map(str, range(1, 13)), "g2", "-o nosort"]


def test_bash_knows_every_program_after_one_line(daemon: Box) -> None:
    known = typed(daemon, "bash", "-c", 'eval "$(gflow completion bash)"; complete -p')
    assert {line.split()[-1] for line in known} >= {"gflow", "gbatch", "gqueue", "gjob", "gctl"}
    only = typed(daemon, "bash", "-c", 'eval "$(gjob completion bash)"; complete -p')
    assert {line.split()[-1] for line in only} == {"gjob"}


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(daemon: Box) -> None:
    daemon.submit("--name", "train", "sleep", "60")

    def offered(line: str) -> list[str]:
        return typed(daemon, "fish", "-c", f"gflow completion fish | source; complete -C '{line}'")

    assert offered("gbatch --gpu-t") == ["--gpu-type\tonly GPUs whose model name contains this text: A100"]
    assert offered("gcancel ") == ["1\tR train"]
    assert offered("gqueue --states=Ru") == ["--states=Running\tR"]
    assert offered("gctl sh") == ["show-gpus"]


ZSH = r"""
autoload -Uz compinit && compinit -u -d {home}/.zcompdump
eval "$(gflow completion zsh)"
_describe() {{ local -a shown; shown=("${{(@P)3}}"); print -rl -- $shown }}
_files() {{ print -- files }}
words=({words})
CURRENT=$#words
_gflow
"""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes(daemon: Box) -> None:
    """The script runs in a real zsh; only the drawing of the list, which needs a terminal, is ours."""
    daemon.submit("--name", "train", "sleep", "60")

    def offered(words: str) -> list[str]:
        return typed(daemon, "zsh", "-f", "-c", ZSH.format(words=words, home=daemon.home))

    assert offered("gbatch --gpu-t") == ["--gpu-type:only GPUs whose model name contains this text: A100"]
    assert offered("gcancel ''") == ["1:R train"]
    assert offered("gqueue -s Ru") == ["Running:R"]
    assert offered("gbatch --output ''") == ["files"]


def test_without_a_daemon_there_are_no_jobs_and_no_noise(box: Box) -> None:
    done = box.run("gflow", "__complete", "1", "gcancel", "")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert box.ok("gflow", "__complete", "1", "gbatch", "--gpu-t").startswith("--gpu-type")


def test_unknown_shell_is_refused_in_one_sentence(box: Box) -> None:
    done = box.run("gqueue", "completion", "tcsh")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "gqueue: completion is for bash, zsh, fish: not 'tcsh'",
    )
    assert box.run("gbatch", "completion").returncode == 2
