"""The boundary of root's rights: only the modules of this table use them over other users (ADR 12).

The table is what a launcher of root has to contain when the scheduler is a process without rights. A module
that is added to it is code that runs as root for others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import gflow

ROOT = Path(gflow.__file__).parent
# Parts of the daemon's process. What else there is runs as its caller.
PARTS = (
    "config",
    "core",
    "daemon",
    "diagnosis",
    "gpu",
    "options",
    "privileged",
    "store",
    "targets",
    "text",
    "wire",
)
# Names of functions that change whose rights apply, give a file to another user, or signal a process.
RIGHTS = (
    "setfsuid setfsgid setuid setgid seteuid setegid setreuid setregid setresuid setresgid setgroups"
    " initgroups chown lchown fchown getspnam getspent kill killpg pidfd_send_signal capset ptrace bpf become"
    " run_as_user LocalOpener InProcess"
).split()
# Files of /proc that only a process's user and root may read.
FILES = ("environ", "maps", "mem", "exe", "root", "cwd", "fd", "pagemap")
# Module -> what it uses. Modules of the shim and the port are the launcher's.
LAUNCHER = ("privileged/", "targets/local/")
ALLOWED = {
    "targets/file_rights.py": {"setfsuid", "setfsgid", "LocalOpener"},
    "gpu/owners.py": {"environ", "maps", "exe"},
    # Names the port's implementation, once.
    "daemon/components.py": {"InProcess"},
    # The launcher, before it takes messages: it makes the scheduler's folders, and ends with its child.
    "daemon/launch.py": {"kill"},
    "daemon/process/directories.py": {"chown", "fchown"},
    # Whether the daemon that left its lock lives: signal 0.
    "daemon/process/instance_lock.py": {"kill"},
    # Their own children.
    "targets/slurm/commands/command_runner.py": {"killpg"},
    "targets/slurm/ssh/pipe_exchange.py": {"kill"},
    # Called by the shim, for the socket of a terminal.
    "wire/terminal_protocol.py": {"chown"},
    # Become a user for good, in a child that the launcher starts.
    "targets/slurm/ssh/user_account.py": {"become"},
    "targets/slurm/files/user_files.py": {"become"},
}


def uses_of(source: str) -> Iterator[str]:
    """Names of root's rights that a module uses, and private files of /proc that it names."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in RIGHTS:
            yield node.attr
        elif isinstance(node, ast.Name) and node.id in RIGHTS:
            yield node.id
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.name in RIGHTS)
        elif isinstance(node, ast.JoinedStr) and _is_of_process(node):
            yield from _named_files(node)
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_read"
        ):
            yield from (
                one.value for one in node.args if isinstance(one, ast.Constant) and one.value in FILES
            )


def _is_of_process(node: ast.JoinedStr) -> bool:
    """Whether an f-string is a path below /proc/PID, or below another folder in its place."""
    first = node.values[0]
    if isinstance(first, ast.Constant):
        return str(first.value) == "/proc/"
    return "_proc" in ast.dump(first)


def _named_files(node: ast.JoinedStr) -> Iterator[str]:
    for part in node.values[1:]:
        if isinstance(part, ast.Constant):
            yield from (one for one in str(part.value).split("/") if one in FILES)


def modules() -> dict[str, str]:
    paths = [path for part in PARTS for path in (ROOT / part).rglob("*.py")]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def test_rights_of_root_are_used_only_behind_the_ports() -> None:
    found = {
        name: used - ALLOWED.get(name, set())
        for name, source in modules().items()
        if not name.startswith(LAUNCHER) and (used := set(uses_of(source)))
    }
    assert {name: used for name, used in found.items() if used} == {}


def test_every_entry_of_the_boundary_is_used() -> None:
    sources = modules()
    assert {name: set(uses_of(sources[name])) for name in ALLOWED} == ALLOWED


@pytest.mark.parametrize(
    ("line", "used"),
    [
        ("os.chown(path, uid, -1)", {"chown"}),
        ("_libc.setfsuid(uid)", {"setfsuid"}),
        ("from os import kill as end", {"kill"}),
        ("os.kill(pid, 9)", {"kill"}),
        ("signal.pidfd_send_signal(fd, 9)", {"pidfd_send_signal"}),
        ("open(f'/proc/{pid}/environ')", {"environ"}),
        ("open(f'/proc/{pid}/fd/3')", {"fd"}),
        ("open(f'{self._proc}/{pid}/maps')", {"maps"}),
        ("self._read(pid, 'environ')", {"environ"}),
        ("LocalOpener(Owner(uid, gid)).open_log(path)", {"LocalOpener"}),
        ("os.stat(f'/proc/{pid}/stat')", set()),
        ("os.open(f'/proc/self/fd/{fd}')", set()),
        ("os.environ['HOME']", set()),
    ],
)
def test_use_of_rights_is_recognised(line: str, used: set[str]) -> None:
    assert set(uses_of(line)) == used
