"""systemd units for the daemon: the machine's (`gflowd unit` prints it) and a user's own. What is not in
them matters most.

Jobs are children of the daemon, so they inherit whatever systemd does to it: no PrivateTmp, no
ProtectHome, no PrivateDevices, no NoNewPrivileges (people need sudo and Apptainer), no RuntimeDirectory
(it would go, with the files of running jobs, when the service stops), no limit on memory or tasks.
"""

from __future__ import annotations

import os
import sys

from gflow.errors import UsageError

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from typing import Any

USUAL = "/usr/local/bin/gflowd"
# KillMode: stopping the service ends the daemon alone; jobs go on. Delegate: their control groups are ours.
MARK = "# Written by gflowd service install"
UNIT = """{mark}
[Unit]
Description=gflow: runs GPU jobs of everybody on this machine
After=network.target remote-fs.target nss-user-lookup.target nvidia-persistenced.service

[Service]
Type=exec
ExecStart={program} run --system
ExecReload=/bin/kill -USR1 $MAINPID
KillMode=process
Delegate=yes
Restart=on-failure
RestartSec=1
TasksMax=infinity
OOMScoreAdjust=-500

[Install]
WantedBy=multi-user.target
"""


USER_UNIT = """{mark}
[Unit]
Description=gflow: runs my GPU jobs

[Service]
Type=exec
ExecStart={program} run
ExecReload=/bin/kill -USR1 $MAINPID
{environment}KillMode=process
Delegate=yes
Restart=on-failure
RestartSec=1
TasksMax=infinity

[Install]
WantedBy=default.target
"""
# Where things are, if somebody has put them elsewhere: a service has no login shell to tell it.
PLACES = ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "GFLOW_CONFIG_FILE")


def system_unit(program: str = USUAL) -> str:
    return UNIT.format(mark=MARK, program=_escaped(program))


def user_unit(program: str, environ: dict[str, str]) -> str:
    lines = [f'Environment="{name}={_escaped(environ[name])}"\n' for name in PLACES if environ.get(name)]
    return USER_UNIT.format(mark=MARK, program=_escaped(program), environment="".join(lines))


def _escaped(text: str) -> str:
    """As systemd reads it: % begins a specifier, and a line ends where it ends."""
    if "\n" in text or '"' in text:
        raise UsageError(f"a systemd unit cannot have {text!a:.60} in it")
    return text.replace("\\", "\\\\").replace("%", "%%")


def program() -> str:
    """The gflowd that is running now."""
    ours = os.path.join(os.path.dirname(sys.executable), "gflowd")
    return ours if os.path.exists(ours) else USUAL


def show(values: dict[str, Any]) -> int:
    sys.stdout.write(system_unit(program()))
    return 0
