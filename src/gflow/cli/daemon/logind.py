"""What becomes of a daemon when its user logs out, and what to do about it.

logind puts a login into a session scope. Where `KillUserProcesses` is set, everything in there is ended
with the session. What the user's own service manager starts ends with that manager: at the last logout,
or never if the user lingers. `decide` is pure; `facts` reads what it needs.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import NamedTuple

# A scope, not a service: when a service's main process ends, its jobs are ended too.
USER_SCOPE = ("systemd-run", "--user", "--scope", "--collect", "--quiet", "--property=Delegate=yes")
ENDED = (
    "This machine ends all your processes when you log out, gflowd and its jobs too. "
    "To keep them: loginctl enable-linger, then gflowd restart"
)
NO_MANAGER = (
    "This machine ends all your processes when you log out, gflowd and its jobs too. "
    "You linger, but your service manager cannot be reached from here: "
    "run gflowd restart after an ordinary login"
)
UNREACHABLE = (
    "When you log out, gflowd and its jobs go on, but the system removes the folder of gflowd's socket. "
    "To keep it: loginctl enable-linger"
)


class Facts(NamedTuple):
    """What there is to know about this login."""

    is_root: bool = False
    # Whether this system has logind at all.
    has_logind: bool = True
    # The text of /proc/self/cgroup.
    cgroup: str = ""
    lingers: bool = False
    kills: bool = False
    # Whether the user's own service manager can be asked to start something.
    has_manager: bool = False
    # Whether gflowd's socket is in the folder that goes with the last session.
    socket_goes: bool = False


class Plan(NamedTuple):
    """How to start the daemon: with these words before its own; and what to tell the user."""

    before: tuple[str, ...] = ()
    note: str = ""


def decide(facts: Facts) -> Plan:
    """How a daemon started here outlives the login, or what the user can do so that it does."""
    in_session = re.search(r"/session-[^/\n]+\.scope", facts.cgroup)
    in_manager = re.search(r"/user@\d+\.service", facts.cgroup)
    if facts.is_root or not facts.has_logind or not (in_session or in_manager):
        return Plan()
    if in_manager:  # it ends with the manager, whatever logind does to sessions
        return Plan() if facts.lingers else Plan(note=ENDED)
    if facts.lingers and facts.has_manager:
        return Plan(before=USER_SCOPE)
    if facts.kills:
        return Plan(note=NO_MANAGER if facts.lingers else ENDED)
    return Plan(note=UNREACHABLE if facts.socket_goes and not facts.lingers else "")


def kills(texts: list[str], user: str) -> bool:
    """Whether logind ends this user's processes, from its configuration files; later ones win.

    The file as it is delivered names the built-in values in comments.
    """
    setting = {"KillUserProcesses": "no", "KillOnlyUsers": "", "KillExcludeUsers": "root"}
    comments = dict(setting)
    for text in texts:
        for line in text.splitlines():
            found = re.fullmatch(r"\s*(#?)\s*(Kill\w+)\s*=\s*(.*?)\s*", line)
            if found and found[2] in setting:
                (comments if found[1] else setting)[found[2]] = found[3]
    said = any(re.search(r"(?m)^\s*KillUserProcesses\s*=", text) for text in texts)
    value = setting["KillUserProcesses"] if said else comments["KillUserProcesses"]
    only = setting["KillOnlyUsers"].split()
    is_chosen = (not only or user in only) and user not in setting["KillExcludeUsers"].split()
    return value.lower() in ("yes", "true", "on", "1") and is_chosen


# ---------------------------------------------------------------- reading it all


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
    """logind's configuration, the least important first: one main file, then drop-ins by name."""
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
