"""The launcher as root under a scheduler in the hands of an attacker, which gets no right of root.

Once the checks in front of the real target are called directly, and once a process of the scheduler's user
sends messages. What is judged is what the machine looks like afterwards: whose processes ran, which files
exist, who lives.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import random
import re
import socket
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gflow.daemon.process import scheduler_account
from gflow.privileged import channel, checked_target, messages
from gflow.privileged.accounts import look_up
from gflow.privileged.checked_target import (
    START_CHECKS,
    CheckedTarget,
    check_account,
    check_files,
    check_min_uid,
    check_user,
)
from gflow.privileged.launcher import CALLS, Launcher, LauncherSettings
from gflow.privileged.messages import HostLimits
from gflow.targets.local.target import LocalTarget
from tests.fuzz.hostile_scheduler import HostileScheduler, World, attack
from tests.system import administer, make_scheduler_account
from tests.user_accounts import people, shared_folder

COUNT = 200
PARTS = 10
# Schedulers, one after the other, and messages of each. GFLOW_FUZZ_S: go on for as many seconds.
SCHEDULERS, MESSAGES = 3, 150
FUZZ_S = float(os.environ.get("GFLOW_FUZZ_S", "0"))


class Scene(NamedTuple):
    """A machine under attack: where its jobs write, and what they must not touch."""

    root: Path
    world: World
    bystanders: list[subprocess.Popen[bytes]]

    def snapshot(self) -> dict[str, tuple[Any, ...]]:
        """Root's files, and the entries of the folder around them."""
        found = {}
        for path in [*self.root.iterdir(), *(self.root / "vault").rglob("*")]:
            status = path.lstat()
            content = path.read_bytes() if path.is_file() else b""
            found[str(path)] = (status.st_uid, status.st_mode, status.st_ino, content)
        return found

    def owners(self) -> set[int]:
        """The users as whom jobs ran."""
        return {path.stat().st_uid for path in (self.root / "out").iterdir()}


@pytest.fixture
def scene() -> Iterator[Scene]:
    with shared_folder() as root, people("ann", "bob", "carl", homes=root) as persons:
        administer("usermod", "--password", "!$6$x$y", persons[2].pw_name)
        for name, mode in {
            "vault": 0o700,
            "out": 0o1777,
            "leases": 0o1777,
            "work": 0o1777,
            "jobs": 0o711,
        }.items():
            (root / name).mkdir()
            (root / name).chmod(mode)
        (root / "run").mkdir(mode=0o700)
        (root / "vault/secret").write_text("secret")
        begun = [
            subprocess.Popen(["sleep", "infinity"], start_new_session=True),
            subprocess.Popen(["sleep", "infinity"], start_new_session=True, user=persons[1].pw_uid),
        ]
        uids = [0, 1, *(person.pw_uid for person in persons)]
        commands = [
            f"id -u > $(mktemp {root}/out/XXXXXX)",
            f"id -u > $(mktemp {root}/out/XXXXXX); kill -9 {begun[0].pid}; echo x > {root}/vault/secret",
        ]
        world = World(
            accounts={uid: account for uid in uids if (account := look_up(uid))},
            gpus={f"GPU-{index}": f"{root}/leases/GPU-{index}" for index in range(2)},
            vault=f"{root}/vault",
            files=(f"{root}/vault/secret", f"{root}/vault/new", f"{root}/new"),
            folder=f"{root}/work",
            jobs=60,
            commands=tuple(("sh", "-c", command) for command in commands),
        )
        try:
            yield Scene(root, world, begun)
        finally:
            for process in begun:
                process.kill()
                process.wait()


def run_attack(scene: Scene) -> None:
    """Attack a target that runs jobs, and wait for their ends."""

    async def act() -> None:
        local = LocalTarget(scene.root / "run", lambda ended: None, scene.root / "jobs")
        local.open()
        try:
            target = CheckedTarget(local, scene.world.rules._replace(account_of=look_up))
            for part in range(PARTS):
                attack(part, COUNT // PARTS, scene.world, target)
                await asyncio.sleep(0.05)
            for run in list(local._busy):
                local.stop(run, now=True)
            while local._busy:
                await asyncio.sleep(0.01)
        finally:
            local.close()

    asyncio.run(asyncio.wait_for(act(), 120))


def test_hostile_scheduler_gets_nothing_of_roots(scene: Scene) -> None:
    assert len(scene.world.ordinary) == 2, "the account that is locked is not among them"
    before = scene.snapshot()
    run_attack(scene)
    assert scene.owners() == set(scene.world.ordinary), "both ran jobs, and nobody else did"
    assert scene.snapshot() == before
    assert [process.poll() for process in scene.bystanders] == [None, None]
    assert {name.partition(".")[0] for name in os.listdir(scene.root / "leases")} <= {*scene.world.gpus}


@pytest.mark.parametrize(
    "check", [check_user, check_account, check_min_uid, check_files], ids=lambda check: check.__name__
)
def test_removal_of_a_check_gives_rights_of_others(
    scene: Scene, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = tuple(one for one in START_CHECKS if one is not check)
    monkeypatch.setattr(checked_target, "START_CHECKS", rest)
    before = scene.snapshot()
    run_attack(scene)
    if check is check_files:
        assert scene.snapshot() != before
    else:
        assert scene.owners() - set(scene.world.ordinary)


# ---------------------------------------------------------------- through the channel


def send_anything(seed: int, scene: Scene, sock: socket.socket) -> None:
    """Send messages, and write down each file of root's that an answer has."""
    attacker, dice = HostileScheduler(seed, scene.world), random.Random(seed)
    for data in attacker.messages(MESSAGES):
        wanted = data if dice.random() < 0.5 else messages.encode(call_of(dice, scene))
        try:
            kind = type(messages.decode(wanted))
        except ValueError:
            continue  # it would end this process; see the tests of the launcher
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pipes = [os.open("/dev/null", os.O_RDWR) for _ in range(3)] if kind is messages.RunAs else []
        with ours, theirs:
            channel.send(sock, wanted, [theirs.fileno(), *pipes] if kind in CALLS else [])
            theirs.close()
            channel.close_all(pipes)
            ours.settimeout(5)
            if kind in CALLS and (packet := channel.receive(ours, messages.MAX_BYTES)):
                for fd in packet.descriptors:
                    path = os.readlink(f"/proc/self/fd/{fd}")
                    if path.startswith(f"{scene.world.vault}/"):  # any user may name the folder itself
                        (scene.root / "out/leak").write_text(path)
                channel.close_all(packet.descriptors)


def call_of(dice: random.Random, scene: Scene) -> messages.AnyMessage:
    """Something that is not about one run."""
    uid = dice.choice([*scene.world.accounts, 65_000])
    account = scene.world.accounts.get(uid)
    name = dice.choice([account.name if account else "ann", "root"])
    path = dice.choice(
        [*scene.world.files, scene.world.vault, "/etc/shadow", f"{scene.root}/work/x", "/tmp/.."]
    )
    inner = (
        f"id -u > $(mktemp {scene.root}/out/XXXXXX); cat {scene.world.vault}/secret > {scene.root}/out/leak"
    )
    return dice.choice(
        [
            messages.OpenFile(
                uid=uid, what=dice.choice(["log", "file", "folder", "copy", "copy to write"]), path=path
            ),
            messages.RunAs(
                uid=uid, user=name, program="ssh", words=("-o", f"ProxyCommand={inner}", "nowhere")
            ),
            messages.RunAs(uid=uid, user=name, program="files", words=()),
            messages.SshFolder(uid=uid),
            messages.BindProgress(uid=uid),
            messages.RemoveProgress(uid=uid),
            messages.AccountOf(uid=uid),
            messages.ForgetOthers(keep=(name,)),
            messages.EarlierEpoch(epoch=path),
            messages.RemoveLeases(gpus=("GPU-0", "passwd")),
            messages.LeaseHolder(gpu="GPU-1"),
            messages.OwnerOf(pid=scene.bystanders[0].pid, trusts_pids=bool(dice.randrange(2))),
            messages.ProcessOf(pid=dice.choice([1, scene.bystanders[1].pid])),
            messages.VisibleDevices(pid=dice.choice([1, scene.bystanders[0].pid])),
            messages.BindPort(host=dice.choice(["0.0.0.0", "127.0.0.1"]), port=dice.choice([22, 80, 601])),
            messages.Strays(),
            messages.Hello(),
        ]
    )


async def serve_attacker(
    scene: Scene, account: pwd.struct_passwd, attack: Callable[[socket.socket], None]
) -> str:
    """Run a launcher until a process of this user has done that; why it was distrusted."""
    ours, theirs = channel.make_pair()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ours.close()
            os.setgroups([])
            os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
            os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
            theirs.setblocking(True)
            attack(theirs)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    theirs.close()
    settings = LauncherSettings(
        run_dir=scene.root / "run",
        socket_dir=scene.root / "sockets",
        job_files_dir=scene.root / "jobs",
        min_uid=1000,
        scheduler_uid=account.pw_uid,
        limits=HostLimits(),
        isolates_devices=False,
        listening=("127.0.0.1", 0),
        listen=lambda: socket.socket(socket.AF_UNIX),
    )
    launcher = Launcher(settings, ours, pid)
    try:
        while not (ended := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)):
            await asyncio.sleep(0.02)
        assert ended.si_status == 0 or launcher.distrust, f"the attacker ended with {ended.si_status}"
        for run in list(launcher._local._busy):
            launcher._local.stop(run, now=True)
        while launcher._local._busy or launcher.users.programs:
            await asyncio.sleep(0.01)
    finally:
        launcher.close()
    return launcher.distrust


def prepared(scene: Scene) -> pwd.struct_passwd:
    make_scheduler_account()
    (scene.root / "sockets").mkdir()
    return scheduler_account.find()


def _wait(sock: socket.socket) -> None:
    """Until the launcher ends this process."""
    time.sleep(60)


def _send_as_child(sock: socket.socket) -> None:
    """What a program that the scheduler was made to start could send."""
    if os.fork() == 0:
        channel.send(sock, messages.encode(messages.EarlierEpoch(epoch="")))
        os._exit(0)
    _wait(sock)


def _send(data: bytes, descriptors: int = 0) -> Callable[[socket.socket], None]:
    def act(sock: socket.socket) -> None:
        channel.send(sock, data, [os.open(os.devnull, os.O_RDWR)] * descriptors)
        _wait(sock)

    return act


BREACHES = {
    "no message": (_send(b"junk"), "MessagePack data is malformed|Expected"),
    "another process": (_send_as_child, "a message came from process"),
    "a call without a socket": (_send(messages.encode(messages.Hello()), 1), "a call came without a socket"),
    "a call without descriptors": (_send(messages.encode(messages.Hello())), "Hello came with 0 descriptors"),
    "descriptors": (_send(messages.encode(messages.EarlierEpoch(epoch="")), 2), "came with 2 descriptors"),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_scheduler_that_breaks_the_protocol_is_ended(scene: Scene, breach: str) -> None:
    attack, why = BREACHES[breach]
    account = prepared(scene)
    assert re.search(why, asyncio.run(asyncio.wait_for(serve_attacker(scene, account, attack), 20)))


def test_process_in_place_of_the_scheduler_gets_nothing_of_roots(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GFLOW_LEASE_DIR", str(scene.root / "leases"))
    account = prepared(scene)
    before, until, seed = scene.snapshot(), time.monotonic() + FUZZ_S, 0
    while seed < SCHEDULERS or time.monotonic() < until:
        assert asyncio.run(serve_attacker(scene, account, partial(send_anything, seed, scene))) == ""
        seed += 1
    assert scene.owners() - set(scene.world.ordinary) == set()
    assert not (scene.root / "out/leak").exists()
    after = {path: found for path, found in scene.snapshot().items() if path != str(scene.root / "sockets")}
    before.pop(str(scene.root / "sockets"))
    assert after == before
    assert [process.poll() for process in scene.bystanders] == [None, None]
