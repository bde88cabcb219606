"""Jobs with a terminal, in a real one (tmux): keys, sizes, programs that fill the screen, cut lines."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gflow.wire.terminal_protocol import GREETING, HELLO, INPUT, MOST_FRAME, frame, reach
from tests.harness import BIN, Box, wait_until
from tests.process.test_multi_user import submitted
from tests.system import acting_as, system

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux here")


class Window:
    """A window of tmux, with a shell in it."""

    def __init__(self, box: Box) -> None:
        self._name = f"gflow-{uuid.uuid4().hex[:8]}"
        env = box.env | {"TERM": "screen"}
        words = ["env", "-i", *(f"{name}={value}" for name, value in env.items()), "bash", "--norc"]
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", "90", "-y", "25", "-c", str(box.work), *words
        )
        self.type("PS1='outside> '")
        self.shows("outside> ")
        self.type("clear")

    def _tmux(self, *words: str) -> str:
        return subprocess.run(
            ["tmux", "-L", self._name, *words], capture_output=True, text=True, check=True
        ).stdout

    def type(self, line: str) -> None:
        self._tmux("send-keys", "-l", line)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p", "-J")

    def shows(self, text: str) -> str:
        return wait_until(lambda: text in (now := self.screen()) and now, 30, f"{text!r}; {self.screen()}")

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._name, "kill-server"], capture_output=True)


@pytest.fixture
def window(box: Box) -> Iterator[Window]:
    box.up("--simulate-gpus", "1x80G", "--cpus", "2")
    made = Window(box)
    yield made
    made.close()


def inside(window: Window, *options: str) -> None:
    """Run a shell as a job, and be in it."""
    window.type(f"grun {' '.join(options)} --pty bash --norc")
    window.shows("bash-")
    window.type("PS1='inside> '; clear")
    window.shows("inside> ")


def test_a_shell_with_job_control_and_a_size_that_follows(box: Box, window: Window) -> None:
    inside(window, "--gpus", "1")
    window.type("echo gpu=$CUDA_VISIBLE_DEVICES; stty size; tty")
    assert "gpu=0\n25 90\n/dev/pts/" in window.shows("/dev/pts/")
    window.resize(110, 33)
    wait_until(lambda: (window.type("stty size"), "33 110" in window.screen())[1], what="the new size")
    window.type("clear; sleep 1000")
    wait_until(lambda: _runs(box, "sleep"), what="sleep")
    window.press("C-z")
    window.shows("Stopped")
    window.type("jobs; fg")
    window.shows("fg")
    wait_until(lambda: _runs(box, "sleep"), what="sleep again")
    window.press("C-c")
    window.type("clear; echo and on")
    window.shows("and on\ninside> ")
    window.type("exit 7")
    window.shows("ended as Failed: ExitCode:7")
    window.type("echo code=$?")
    window.shows("code=7")
    assert "and on" in box.text_of(1), "the log has what was shown"


def _runs(box: Box, name: str) -> bool:
    """Whether a program of this name runs (and is not stopped) in the box."""
    for pid in box.processes():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        if f"({name})" in stat and stat.rsplit(")", 1)[1].split()[0] in "SR":
            return True
    return False


def test_a_program_that_fills_the_screen(box: Box, window: Window) -> None:
    program = "vim -u NONE -N" if shutil.which("vim") else "top"
    (box.work / "note.txt").write_text("one line\n")
    window.type(f"grun --pty {program} {'note.txt' if 'vim' in program else ''}")
    if program == "top":
        window.shows("load average")
        window.press("q")
    else:
        assert "\n~ " in window.shows("one line")
        window.type("Godrawn by a job\x1b")
        window.resize(100, 30)
        window.shows("drawn by a job")
        window.press("Escape")
        window.type(":wq")
    window.shows("outside> ")
    wait_until(lambda: box.job(1)["state"] == "Finished", what="its end")
    if "vim" in program:
        assert (box.work / "note.txt").read_text() == "one line\ndrawn by a job\n"


def test_a_terminal_that_is_closed_hangs_the_job_up(box: Box, window: Window) -> None:
    inside(window)
    window.type("sleep 1001 & sleep 1002")
    wait_until(lambda: _runs(box, "sleep"), what="sleep")
    window.close()
    job = box.finished(1)
    assert (job["state"], job["reason"]) == ("Failed", "Signal:1")
    wait_until(lambda: not _runs(box, "sleep"), what="the end of all it started")


def test_detached_terminal_continues_and_is_attached_again(box: Box, window: Window) -> None:
    inside(window, "--detachable")
    window.type("x=kept; clear")
    window.press("C-\\")
    window.shows("grun: detached; job 1 is still running (gjob attach 1 returns to it)")
    assert box.job(1)["state"] == "Running"
    window.type("clear; gjob attach 1")
    window.shows("inside> ")
    window.type("clear; echo x=$x")
    window.shows("x=kept")
    window.close()  # without a word: it goes on
    second = Window(box)
    try:
        second.type("gjob attach 1")
        second.shows("inside> ")
        second.type("clear; echo still $x; exit 3")
        second.shows("still kept")
        second.type("echo code=$?")
        second.shows("code=3")
    finally:
        second.close()
    assert box.finished(1)["exit_code"] == 3


def test_waiting_terminal_job_is_cancelled_by_ctrl_c(box: Box, window: Window) -> None:
    first = box.submit("--gpus", "1", "sleep", "600")
    window.type("grun --gpus 1 --pty bash")
    window.shows("job 2 waits: Resources")
    window.press("C-c")
    window.shows("cancelling job 2")
    assert box.finished(2)["state"] == "Cancelled"
    box.ok("gcancel", "--now", str(first))


def test_a_restart_of_the_daemon_is_not_noticed(box: Box, window: Window) -> None:
    inside(window)
    box.down()
    box.up()
    window.type("clear; echo here; exit 4")
    window.shows("ended as Failed: ExitCode:4")
    assert box.finished(1)["exit_code"] == 4


def test_gcancel_ends_a_shell_that_ignores_term(box: Box, window: Window) -> None:
    inside(window)
    box.ok("gcancel", "1")
    assert box.finished(1)["state"] == "Cancelled"
    window.shows("ended as Cancelled")
    assert "KILL" not in (box.finished(1)["reason"] or "")


def test_pty_without_a_terminal_is_refused(box: Box) -> None:
    box.up()
    done = box.run("grun", "--pty", "bash")
    assert (done.returncode, box.jobs()) == (2, {})
    assert "--pty needs a terminal" in done.stderr
    assert "--detachable requires --pty" in box.run("grun", "--detachable", "true").stderr


def test_terminal_job_that_cannot_start_says_why(box: Box, window: Window) -> None:
    job = box.submit("--pty", "--chdir", "/", "--depends-on", str(box.submit("true")), "no-such-program")
    assert box.finished(job)["reason"].startswith("StartFailed: ")


# ---------------------------------------------------------------- commands beside jobs


def test_exec_is_in_the_jobs_world(box: Box) -> None:
    box.up("--simulate-gpus", "2x80G", "--cpus", "2")
    job = box.submit("--gpus", "1", "--memory", "200M", "bash", "-c", "export INNER=1; sleep 600",
                     env={"MINE": "yes"})  # fmt: skip
    wait_until(lambda: box.job(job)["state"] == "Running")
    line = "echo $GFLOW_JOB_ID $CUDA_VISIBLE_DEVICES $MINE; pwd; cat; echo wrong >&2; exit 3"
    done = box.run("gjob", "exec", str(job), "--", "bash", "-c", line, input="typed\n")
    assert done.stdout == f"{job} 0 yes\n{box.work}\ntyped\n"
    assert (done.stderr, done.returncode) == ("wrong\n", 3)
    assert box.run("gjob", "exec", str(job), "bash", "-c", "kill -9 $$").returncode == 137
    groups = box.ok("gjob", "exec", str(job), "--", "cat", "/proc/self/cgroup")
    pid = next(pid for pid in box.processes() if Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    assert groups == Path(f"/proc/{pid}/cgroup").read_text()
    wait_until(lambda: not list((box.data / "run").glob("*.x*")), what="nothing left of them")
    assert box.job(job)["state"] == "Running"


def test_large_output_and_input_come_through_whole(box: Box) -> None:
    box.up("--cpus", "2")
    job = box.submit("sleep", "600")
    wait_until(lambda: box.job(job)["state"] == "Running")
    text = "".join(f"line {number}\n" for number in range(200_000))
    assert box.run("gjob", "exec", str(job), "cat", input=text).stdout == text


def test_exec_ends_with_its_job(box: Box) -> None:
    box.up("--cpus", "2")
    job = box.submit("sleep", "600")
    wait_until(lambda: box.job(job)["state"] == "Running")
    beside = subprocess.Popen(
        [str(BIN / "gjob"), "exec", str(job), "bash", "-c", "echo on; exec sleep 601"],
        env=box.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert beside.stdout is not None and beside.stdout.readline() == "on\n"
    box.ok("gcancel", "--now", str(job))
    beside.communicate(timeout=30)
    assert beside.returncode != 0
    wait_until(lambda: not _runs(box, "sleep"), what="the end of both")


def test_exec_beside_what_does_not_run_is_refused(box: Box) -> None:
    box.up("--cpus", "2")
    held = box.submit("--hold", "true")
    over = box.submit("true")
    box.finished(over)
    for job, word in ((held, "Hold"), (over, "Finished")):
        done = box.run("gjob", "exec", str(job), "true")
        assert done.returncode == 1 and f"does not run: it is {word}" in done.stderr
    assert box.run("gjob", "exec", "99", "true").returncode == 1
    assert box.run("gjob", "exec", str(held)).returncode == 2
    job = box.submit("sleep", "600")
    wait_until(lambda: box.job(job)["state"] == "Running")
    assert box.run("gjob", "exec", str(job), "no-such-program").returncode == 127


# ---------------------------------------------------------------- who reaches whom


def test_terminal_of_another_user_is_refused() -> None:
    with system() as machine:
        machine.up()
        body = {
            "token": "terminal-1",
            "jobs": [_request("bash", "-c", "id -un; read x; echo got $x", pty=True)],
        }
        status, answer = machine.ask(machine.ann, "POST", "/jobs", body)
        assert status == 201, answer
        job = answer["jobs"][0]["id"]
        wait_until(lambda: machine.box.job(job)["state"] == "Running")
        path = machine.ask(machine.ann, "GET", f"/jobs/{job}/terminal")[1]["path"]
        wait_until(lambda: os.path.exists(path))
        assert os.stat(path).st_uid == machine.ann.person.pw_uid
        assert os.stat(path).st_mode & 0o777 == 0o600
        for stranger in (machine.bob, machine.opal):
            assert machine.ask(stranger, "GET", f"/jobs/{job}/terminal")[0] == 403
            ask = {"command": ["id"]}
            assert machine.ask(stranger, "POST", f"/jobs/{job}/exec", ask)[0] == 403
            with acting_as(stranger.person), pytest.raises(PermissionError):
                reach(path)
        uid = machine.ann.person.pw_uid
        carrier = wait_until(
            lambda: (pid := _carrier(path)) and _uid_of(pid) == uid and pid, what="its carrier"
        )
        for stranger in (machine.ann, machine.bob):  # also its owner: it remembers what its shim knew
            with acting_as(stranger.person), pytest.raises(PermissionError):
                Path(f"/proc/{carrier}/mem").open("rb").close()
        with acting_as(machine.ann.person):
            sock = reach(path)
        _say(sock, "hello")
        job_view = machine.box.finished(job)
        assert job_view["state"] == "Finished", job_view
        text = machine.log_of(machine.ann, job)
        assert machine.ann.person.pw_name in text.split(), "what was typed early stands before it"
        assert "got hello" in text
        assert not os.path.exists(path)


def _request(*command: str, **options: Any) -> dict[str, Any]:
    return {"command": list(command), "cwd": "/", "environ": "", "options": options}


def _say(sock: socket.socket, line: str) -> None:
    sock.sendall(frame(HELLO, GREETING.pack(24, 80, False)) + frame(INPUT, line.encode() + b"\n"))


def _uid_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("Uid:")[1].split()[0])


def _carrier(path: str) -> int:
    """The process that listens at `path`."""
    inode = next(
        line.split()[6]
        for line in Path("/proc/net/unix").read_text().splitlines()
        if os.path.basename(path) in line
    )
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fds = [os.readlink(f"/proc/{entry}/fd/{fd}") for fd in os.listdir(f"/proc/{entry}/fd")]
            except OSError:
                continue
            if f"socket:[{inode}]" in fds:
                return int(entry)
    return 0


def test_exec_is_the_jobs_owner_also_for_root() -> None:
    with system() as machine:
        machine.up()
        body = {"token": "terminal-2", "jobs": [_request("sleep", "600")]}
        job = machine.ask(machine.ann, "POST", "/jobs", body)[1]["jobs"][0]["id"]
        wait_until(lambda: machine.box.job(job)["state"] == "Running")
        name = machine.ann.person.pw_name
        assert machine.box.ok("gjob", "exec", str(job), "id", "-un") == f"{name}\n"
        assert machine.ann.ok("gjob", "exec", str(job), "id", "-un") == f"{name}\n"
        done = machine.bob.run("gjob", "exec", str(job), "id", "-un")
        assert done.returncode == 1 and "belongs to" in done.stderr
        assert pwd.getpwnam(name)


def test_invalid_terminal_bytes_close_the_connection(box: Box) -> None:
    box.up("--cpus", "2")
    job = box.submit("--pty", "bash", "-c", "read x; echo got $x")
    wait_until(lambda: box.job(job)["state"] == "Running")
    path = box.api("GET", f"/jobs/{job}/terminal")[1]["path"]
    wait_until(lambda: os.path.exists(path))
    for nonsense in (
        b"GET / HTTP/1.1\r\n\r\n",
        frame(HELLO, b"x"),
        b"d" + (MOST_FRAME + 1).to_bytes(4, "big"),
    ):
        sock = reach(path)
        sock.sendall(nonsense)
        sock.settimeout(20)
        assert sock.recv(1) == b""
    sock = reach(path)
    _say(sock, "on")
    assert box.finished(job)["state"] == "Finished"
    assert "got on" in box.text_of(job)


def test_exec_of_one_user_leaves_room_for_the_others() -> None:
    with system() as machine:
        machine.up()
        jobs = {box: submitted(machine, box, "sleep", "60") for box in (machine.ann, machine.bob)}
        asked = {"command": ["sleep", "60"]}
        path = f"/jobs/{jobs[machine.bob]}/exec"
        answers = [machine.ask(machine.bob, "POST", path, asked) for _ in range(65)]
        assert [status for status, _ in answers] == [201] * 64 + [409]
        assert "64 commands" in answers[-1][1]["title"]
        assert machine.ask(machine.ann, "POST", f"/jobs/{jobs[machine.ann]}/exec", asked)[0] == 201
