"""`gflowd unit`: a systemd unit for the machine's daemon. What is not in it matters most.

Jobs are children of the daemon, so they inherit whatever systemd does to it: no PrivateTmp, no
ProtectHome, no PrivateDevices, no NoNewPrivileges (people need sudo and Apptainer), no RuntimeDirectory
(it would go, with the files of running jobs, when the service stops), no limit on memory or tasks.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from typing import Any

USUAL = "/usr/local/bin/gflowd"
# KillMode: stopping the service ends the daemon alone; jobs go on. Delegate: their control groups are ours.
UNIT = """[Unit]
Description=gflow: runs GPU jobs of everybody on this machine
After=network.target remote-fs.target nss-user-lookup.target nvidia-persistenced.service

[Service]
Type=exec
ExecStart={program} run --system
KillMode=process
Delegate=yes
Restart=on-failure
RestartSec=1
TasksMax=infinity
OOMScoreAdjust=-500

[Install]
WantedBy=multi-user.target
"""


def system_unit(program: str = USUAL) -> str:
    return UNIT.format(program=program)


def show(values: dict[str, Any]) -> int:
    ours = os.path.join(os.path.dirname(sys.executable), "gflowd")
    sys.stdout.write(system_unit(ours if os.path.exists(ours) else USUAL))
    return 0
