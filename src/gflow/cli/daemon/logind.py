"""Keep a user's daemon alive after logout, or tell the user how to.

logind puts a login into a session scope. Where `KillUserProcesses` is set, logind kills every process of that
scope at the end of the session. A process started by the systemd user manager ends with the manager: at the
last logout, or never if lingering is enabled. `decide` is pure; `facts` reads its input.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import NamedTuple

# A scope, not a service: when the main process of a service exits, systemd kills its jobs too.
USER_SCOPE = ("systemd-run", "--user", "--scope", "--collect", "--quiet", "--property=Delegate=yes")
ENDED = (
    "When you log out, this machine ends all your processes, including gflowd and its jobs. "
    "To keep them: loginctl enable-linger, then gflowd restart"
)
NO_MANAGER = (
    "When you log out, this machine ends all your processes, including gflowd and its jobs. "
    "Lingering is enabled, but the systemd user manager is not reachable from this session: "
    "run gflowd restart after an ordinary login"
)
UNREACHABLE = (
    "When you log out, gflowd and its jobs keep running, but the system removes the folder of its socket. "
    "To keep it: loginctl enable-linger"
)


class Facts(NamedTuple):
    """Properties of this login that `decide` depends on."""

    is_root: bool = False
    # Whether logind runs on this system.
    has_logind: bool = True
    # The text of /proc/self/cgroup.
    cgroup: str = ""
    lingers: bool = False
    kills: bool = False
    # Whether the systemd user manager is reachable.
    has_manager: bool = False
    # Whether gflowd's socket is in the runtime folder, which is removed with the last session.
    socket_goes: bool = False


class Plan(NamedTuple):
    """How to start the daemon: a command prefix, and a note for the user."""

    before: tuple[str, ...] = ()
    note: str = ""


def decide(facts: Facts) -> Plan:
    """How to start a daemon that outlives this login, or a note on how the user can allow it."""
    in_session = re.search(r"/session-[^/\n]+\.scope", facts.cgroup)
    in_manager = re.search(r"/user@\d+\.service", facts.cgroup)
    if facts.is_root or not facts.has_logind or not (in_session or in_manager):
        return Plan()
    if in_manager:  # the daemon ends with the manager, whatever logind does to sessions
        return Plan() if facts.lingers else Plan(note=ENDED)
    if facts.lingers and facts.has_manager:
        return Plan(before=USER_SCOPE)
    if facts.kills:
        return Plan(note=NO_MANAGER if facts.lingers else ENDED)
    return Plan(note=UNREACHABLE if facts.socket_goes and not facts.lingers else "")


def kills(texts: list[str], user: str) -> bool:
    """Whether logind kills this user's processes, from its configuration files; later files win.

    The file as shipped lists the compiled-in defaults in comments.
    """
    setting = {"KillUserProcesses": "no", "KillOnlyUsers": "", "KillExcludeUsers": "root"}
    comments = dict(setting)
    for text in texts:
        for line in text.splitlines():
            found = re.fullmatch(r"\s*(#?)\s*(Kill\w+)\s*=\s*(.*?)\s*", line)
            if found and found[2] in setting:
                (comments if found[1] else setting)[found[2]] = found[3]
    is_set = any(re.search(r"(?m)^\s*KillUserProcesses\s*=", text) for text in texts)
    value = setting["KillUserProcesses"] if is_set else comments["KillUserProcesses"]
    only = setting["KillOnlyUsers"].split()
    is_chosen = (not only or user in only) and user not in setting["KillExcludeUsers"].split()
    return value.lower() in ("yes", "true", "on", "1") and is_chosen


# ---------------------------------------------------------------- reading the facts


def facts(socket: str) -> Facts:
    """The facts of this process on this machine."""
    import pwd

    uid = os.getuid()
    if uid == 0 or not os.path.isdir("/run/systemd/seats"):
        return Facts(is_root=uid == 0, has_logind=False)
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    can_ask = bool(runtime) and os.path.exists(f"{runtime}/systemd/private")
    return Facts(
        cgroup=_read("/proc/self/cgroup"),
        lingers=os.path.exists(f"/var/lib/systemd/linger/{user}"),
        kills=kills(_logind_files(), user),
        has_manager=can_ask and shutil.which(USER_SCOPE[0]) is not None,
        socket_goes=socket.startswith(f"/run/user/{uid}/"),
    )


def _logind_files() -> list[str]:
    """logind's configuration files, lowest precedence first: one main file, then drop-ins by name."""
    roots = ("/usr/lib/systemd", "/run/systemd", "/etc/systemd")
    main = [text for root in roots if (text := _read(f"{root}/logind.conf"))][-1:]
    added = {}
    for root in roots:
        folder = f"{root}/logind.conf.d"
        if os.path.isdir(folder):
            added.update({name: f"{folder}/{name}" for name in os.listdir(folder) if name.endswith(".conf")})
    return main + [_read(added[name]) for name in sorted(added)]


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""
