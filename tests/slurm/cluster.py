"""A real Slurm on this machine: controller, nodes with emulated GPUs, all below one folder.

Nothing in /etc, no systemd, no control groups. GPUs are links to /dev/null: Slurm hands them out by index and
sets CUDA_VISIBLE_DEVICES. Each node has a hostname and an address of its own where we may unshare (root).
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.waiting import wait_until

NEEDED = ("slurmctld", "slurmd", "sbatch", "squeue", "munged")
NEEDED_FOR_ACCOUNTING = ("slurmdbd", "mariadbd", "mariadb-install-db")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
HOST = socket.gethostname().partition(".")[0]
# The end of a shell command that only a trap ends. Slurm signals every process of a job: where `sleep` gets
# the signal before the shell, a `wait` without the loop returns, and the shell exits without its trap.
UNTIL_TRAPPED = "while :; do sleep 1 & wait; done"


def lacks(*, accounting: bool = False) -> str:
    """The programs that are missing, for a reason to skip; empty: all are here."""
    wanted = NEEDED + (NEEDED_FOR_ACCOUNTING if accounting else ())
    return ", ".join(name for name in wanted if shutil.which(name, path=PATH) is None)


class Cluster:
    """`nodes` nodes with `gpus` GPUs each. `start` and `stop`; single parts can be killed and come back."""

    def __init__(
        self, root: Path, nodes: int = 4, gpus: int = 4, *, cpus: int = 8, accounting: bool = False
    ) -> None:
        self.root, self.nodes, self.gpus, self.accounting = root, nodes, gpus, accounting
        self.cpus = cpus
        self.me = "root" if os.getuid() == 0 else str(os.getuid())
        self.port = _free_block(nodes + 4)
        self.conf = root / "slurm.conf"
        # With names and addresses of their own.
        self.apart = (
            subprocess.run(["unshare", "--uts", "--mount", "true"], capture_output=True).returncode == 0
        )
        self.env = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))
        } | {"SLURM_CONF": str(self.conf), "PATH": PATH}

    # ------------------------------------------------------------ life

    def start(self) -> Cluster:
        for name in ("state", "log", "spool", "run", "dev", "munge"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for folder in [self.root, *self.root.iterdir()]:
            if folder.is_dir():
                folder.chmod(0o755)
        (self.root / "munge").chmod(0o711)
        self._start_munge()
        if self.accounting:
            self._start_database()
        self._write_configuration()
        if self.accounting:
            self._run("slurmdbd")
            wait_until(lambda: self._has_cluster(), 30, "slurmdbd")
        self.start_controller()
        for number in range(1, self.nodes + 1):
            self.start_node(number)
        wait_until(lambda: self.idle_nodes() == self.nodes, 60, f"idle nodes; {self.tail()}")
        return self

    def stop(self) -> None:
        if self._pid("slurmctld.pid"):
            self.call("scancel", "--user", "root", timeout=12)
        for number in range(1, self.nodes + 1):
            self._end(f"run/slurmd-node{number}.pid")
        self._end("slurmctld.pid")
        for pid in self.job_processes():
            _kill(pid)
        for name in ("run/slurmdbd.pid", "run/mariadbd.pid", "munge/munged.pid"):
            self._end(name)

    def start_controller(self) -> None:
        self._run("slurmctld", "-f", str(self.conf))

    def kill_controller(self) -> None:
        """As a power cut would: what it has not saved yet is lost."""
        pid = self._pid("slurmctld.pid")
        assert pid, "there is no slurmctld"
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not _lives(pid), 10, "the end of slurmctld")
        (self.root / "slurmctld.pid").unlink(missing_ok=True)

    def start_node(self, number: int) -> None:
        (self.root / f"spool/node{number}").mkdir(exist_ok=True)
        words = ["slurmd", "-f", str(self.conf), "-N", f"node{number}"]
        if self.apart:
            line = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'
            apart = ["unshare", "--uts", "--mount", "--propagation", "private", "sh", "-c", line, "sh"]
            words = [*apart, str(self.root / "hosts"), f"node{number}", *words]
        self._run(*words)

    def kill_node(self, number: int) -> None:
        """The node is cut off: its slurmd is gone, and what runs on it runs on."""
        pid = self._pid(f"run/slurmd-node{number}.pid")
        assert pid, f"node{number} is not there"
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not _lives(pid), 10, f"the end of node{number}")

    # ------------------------------------------------------------ questions

    def call(self, *words: str, timeout: float = 30) -> str:
        """What one of Slurm's commands prints; empty if it fails."""
        with suppress(subprocess.TimeoutExpired):
            return subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=timeout).stdout
        return ""

    def idle_nodes(self) -> int:
        return self.call("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split().count("idle")

    def forget_jobs(self) -> None:
        """Nothing of an earlier test waits or runs, and all nodes are there."""
        for user in sorted({*self.call("squeue", "-h", "-o", "%u").split(), self.me}):
            self.call("scancel", "--user", user, "--state=PENDING")
            self.call("scancel", "--user", user)
        wait_until(lambda: not self.call("squeue", "-h"), 60, "an empty queue")
        self.resume_nodes()
        wait_until(lambda: self.idle_nodes() == self.nodes, 60, f"idle nodes; {self.call('sinfo')}")

    def resume_nodes(self) -> None:
        """Use drained nodes again.

        After a crash the controller may give out numbers again that a node still knows, and then drains it
        ("Duplicate jobid"): that is for an administrator to look at.
        """
        for node in self.call("sinfo", "-h", "-N", "-p", "main", "-t", "drain", "-o", "%N").split():
            self.call("scontrol", "update", f"nodename={node}", "state=resume")

    def log_size(self) -> int:
        """The size of the controller's log: where what follows begins."""
        return (self.root / "log/slurmctld.log").stat().st_size

    def has_node_cancelled_array(self, start: int) -> bool:
        """Whether a node has refused the task with an array's own id, and slurmd has cancelled that id.

        `start`: the size of the log before it.
        """
        log = (self.root / "log/slurmctld.log").read_bytes()[start:].decode(errors="replace")
        refused = re.findall(r"_slurm_rpc_requeue: Requeue of JobId=(\d+) returned an error", log)
        cancelled = re.findall(r"REQUEST_KILL_JOB JobId=(\d+) uid", log)
        arrays = self.call("squeue", "--noheader", "--states=all", "--format=%F").split()
        return bool({*refused} & {*cancelled} & {*arrays})

    def set_min_job_age(self, seconds: int) -> None:
        """How long the controller knows a job that has ended. It forgets jobs once a minute."""
        text = re.sub(r"^MinJobAge=\d+$", f"MinJobAge={seconds}", self.conf.read_text(), flags=re.MULTILINE)
        self.conf.write_text(text)
        self.call("scontrol", "reconfigure")

    @staticmethod
    def lives(pid: int) -> bool:
        return _lives(pid)

    def tail(self) -> str:
        """The ends of all logs, for who wonders why it does not start."""
        logs = sorted((self.root / "log").iterdir())
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-500:]}" for path in logs)

    def job_processes(self) -> list[int]:
        """Processes of this cluster's jobs, wherever they went: known by their environment."""
        mark = f"SLURM_CONF={self.conf}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    words = (entry / "environ").read_bytes().split(b"\0")
                    command = (entry / "comm").read_text().strip()
                    is_job = any(word.startswith(b"SLURM_JOB_ID=") for word in words)
                    if (
                        mark in words
                        and (is_job or command == "slurmstepd")
                        and int(entry.name) != os.getpid()
                    ):
                        found.append(int(entry.name))
        return found

    # ------------------------------------------------------------ parts

    def _run(self, *words: str) -> None:
        name = next(word for word in words if word.startswith("slurm"))
        with (self.root / "log" / f"{name}.out").open("ab") as log:
            done = subprocess.run(words, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        assert done.returncode == 0, f"{name} did not start: {self.tail()}"

    def _start_munge(self) -> None:
        folder = self.root / "munge"
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        files = [f"--{name}-file={folder}/munged.{name}" for name in ("pid", "log", "seed")]
        subprocess.run(
            ["munged", "--force", f"--key-file={folder}/munge.key", f"--socket={self._munge_socket()}",
             "--num-threads=2", *files],
            env=self.env, check=True, capture_output=True,
        )  # fmt: skip

    def _munge_socket(self) -> str:
        path = str(self.root / "munge/munge.sock")
        assert len(path) < 105, f"{path} is too long for a socket"
        return path

    def _start_database(self) -> None:
        data = self.root / "db"
        subprocess.run(
            ["mariadb-install-db", "--no-defaults", f"--user={self.me}", f"--datadir={data}",
             "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"],
            env=self.env, check=True, capture_output=True,
        )  # fmt: skip
        log = self.root / "log/mariadbd.log"
        with log.open("ab") as out:
            subprocess.Popen(
                ["mariadbd", "--no-defaults", f"--user={self.me}", f"--datadir={data}",
                 f"--socket={self.root}/run/db.sock", f"--pid-file={self.root}/run/mariadbd.pid",
                 "--bind-address=127.0.0.1", f"--port={self.port + self.nodes + 1}", "--skip-grant-tables",
                 "--skip-name-resolve", "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900",
                 "--innodb-flush-log-at-trx-commit=0"],
                env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        wait_until(lambda: "ready for connections" in log.read_text(errors="replace"), 60, "mariadbd")

    def _has_cluster(self) -> bool:
        done = subprocess.run(
            ["sacctmgr", "-i", "add", "cluster", "lab"],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=10,
        )
        return done.returncode == 0 or "already exists" in done.stdout + done.stderr

    def _write_configuration(self) -> None:
        root, many = self.root, f"[1-{self.nodes}]" if self.nodes > 1 else "1"
        (root / "hosts").write_text(
            f"127.0.0.1 localhost {HOST}\n"
            + "".join(f"127.0.1.{number} node{number}\n" for number in range(1, self.nodes + 1))
        )
        for index in range(self.gpus):
            link = root / f"dev/nvidia{index}"
            link.unlink(missing_ok=True)
            link.symlink_to("/dev/null")
        files = f"{root}/dev/nvidia[0-{self.gpus - 1}]"
        (root / "gres.conf").write_text(f"NodeName=node{many} Name=gpu Type=a100 File={files}\n")
        where = f"node{many} NodeAddr=127.0.1.{many}" if self.apart else f"{HOST} NodeAddr=127.0.0.1"
        ports = f"[{self.port + 1}-{self.port + self.nodes}]" if self.nodes > 1 else str(self.port + 1)
        values = {
            "root": root, "host": HOST, "me": self.me, "port": self.port, "first": self.port + 1,
            "socket": self._munge_socket(), "many": many, "where": where, "ports": ports, "gpus": self.gpus,
            "cpus": self.cpus,
            "accounting": ACCOUNTING if self.accounting else NO_ACCOUNTING, "dbd": self.port + self.nodes + 2,
            "db": self.port + self.nodes + 1,
        }  # fmt: skip
        values["accounting"] = str(values["accounting"]).format(**values)
        self.conf.write_text(CONTROLLER.format(**values))
        if self.accounting:
            (root / "slurmdbd.conf").write_text(DATABASE.format(**values))
            (root / "slurmdbd.conf").chmod(0o600)

    def _pid(self, name: str) -> int | None:
        with suppress(OSError, ValueError):
            pid = int((self.root / name).read_text())
            return pid if _lives(pid) else None
        return None

    def _end(self, name: str) -> None:
        pid = self._pid(name)
        if pid:
            os.kill(pid, signal.SIGTERM)
            with suppress(AssertionError):
                wait_until(lambda: not _lives(pid), 5, name)
            _kill(pid)
        (self.root / name).unlink(missing_ok=True)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    """A zombie counts as gone: in a container no process may reap it."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def _free_block(count: int) -> int:
    """The first of so many free ports in a row."""
    for _ in range(100):
        first = 17000 + random.randrange(700) * 20
        with suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", port))
            return first
    raise AssertionError("no free ports")


NO_ACCOUNTING = """AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none"""
ACCOUNTING = """AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd}
AccountingStoragePass={socket}
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits,qos
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=5"""
CONTROLLER = """ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser={me}
SlurmdUser={me}
AuthType=auth/munge
AuthInfo=socket={socket},cred_expire=5
CredType=cred/munge
SlurmctldPort={port}
SlurmdPort={first}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/run/slurmd-%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
DefMemPerCPU=100
{accounting}
JobCompType=jobcomp/none
MinJobAge=600
Licenses=matlab:4,ansys:2
MaxJobCount=20000
MaxArraySize=2001
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,bf_continue,sched_interval=2,batch_sched_delay=0,sched_min_interval=0
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
BatchStartTimeout=10
KillWait=5
InactiveLimit=0
MessageTimeout=10
OverTimeLimit=0
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=DEFAULT Feature=ib,big
NodeName=node{many} NodeHostname={where} Port={ports} CPUs={cpus} RealMemory=16000 Gres=gpu:a100:{gpus}
PartitionName=main Nodes=ALL Default=YES MaxTime=7-0 DefaultTime=1:0:0 PriorityTier=10 PreemptMode=OFF
PartitionName=high Nodes=ALL MaxTime=1-0 DefaultTime=1:0:0 PriorityTier=100 PreemptMode=OFF
PartitionName=low Nodes=ALL MaxTime=7-0 DefaultTime=1:0:0 PriorityTier=1 PreemptMode=REQUEUE GraceTime=10
"""
DATABASE = """AuthType=auth/munge
AuthInfo=socket={socket},cred_expire=5
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={dbd}
SlurmUser={me}
LogFile={root}/log/slurmdbd.log
PidFile={root}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={db}
StorageUser=root
StorageLoc=slurm_acct
"""
