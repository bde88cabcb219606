"""Slurm's commands, run with a time limit and without the variables that would change what they mean."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gflow.targets.slurm import inventory, parsing, probing

# Slurm itself gives up after 9 seconds or so when its controller does not answer.
PATIENCE_S = 12.0
# Somebody sits at a terminal and waits for this one.
TRIED_S = 10.5
# Variables of Slurm's that say where it is; all others say what a job is to be like.
KEPT = frozenset({"SLURM_CONF"})


class Said(NamedTuple):
    """What a command said. `unsure`: it may have happened or not, as the controller did not answer."""

    ok: bool
    text: str
    error: str = ""
    unsure: bool = False


class Slurm:
    """One cluster's commands. Each call blocks for up to `patience_s`: not for the daemon's loop."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._environ = cleaned(os.environ)

    @property
    def is_here(self) -> bool:
        """Whether Slurm's commands are on the daemon's PATH."""
        return shutil.which("sbatch") is not None

    def submit(
        self, script: str, environ: Mapping[str, str], cwd: str, umask: int, *, test: bool = False
    ) -> Said:
        """The id under which Slurm has taken the script, or why not; `test`: only when it would start."""
        where = {name: value for name, value in self._environ.items() if name in KEPT}
        words = ["sbatch", "--test-only" if test else "--parsable"]
        patience_s = min(TRIED_S, self._patience_s) if test else self._patience_s
        said = self._run(words, script, cleaned(environ) | where, cwd, umask, patience_s)
        if test:
            return said._replace(text=parsing.parse_start(said.error)) if said.ok else said
        if not said.ok:
            return said
        id = parsing.parse_submitted(said.text)
        return said._replace(text=id) if id else Said(False, "", f"sbatch said {said.text!a:.100}", True)

    def queue(self) -> Said:
        """All jobs of this user that Slurm still knows, over or not."""
        form = f"--format={parsing.SQUEUE_FORMAT}"
        return self._run(["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", form])

    def sizes(self) -> list[inventory.Size]:
        """Which nodes there are, by partition."""
        said = self._run(["sinfo", "--noheader", f"--format={inventory.SINFO_FORMAT}"])
        return inventory.parse_sizes(said.text)

    def limits(self, account: str = "") -> list[inventory.Limits]:
        """What the accounting lets this user have, and an account as a whole; nothing where there is none."""
        me = pwd.getpwuid(os.getuid()).pw_name
        which = f"account={account}" if account else f"user={me}"
        found = inventory.parse_limits(self._accounts("assoc", which, f"format={inventory.ASSOC_FORMAT}"))
        return [one for one in found if one.user in ("", me)]

    def limits_of(self, id: str) -> list[str]:
        """In words, all limits of the account and of the quality of service that a job has."""
        said = self._run(["scontrol", "--oneliner", "show", "job", id])
        account, qos = inventory.parse_owner(said.text)
        limits = self.limits(account) if account else []
        found = [f"account {account}: {words}" for one in limits for words in one.caps]
        if qos:
            said_of_qos = self._accounts("qos", f"name={qos}", f"format={inventory.QOS_FORMAT}")
            found += [f"QoS {qos}: {words}" for words in inventory.parse_qos(said_of_qos)]
        return list(dict.fromkeys(found))

    def _accounts(self, *words: str) -> str:
        """What the accounting knows; empty where there is none."""
        return self._run(["sacctmgr", "--noheader", "--parsable2", "--readonly", "show", *words]).text

    def start_of(self, id: str) -> str | None:
        """When Slurm expects a job to start; empty: it does not say. None: it does not answer."""
        asked = ["squeue", "--noheader", "--start", f"--jobs={id}", "--format=%S"]
        said = self._run(asked, patience_s=min(TRIED_S, self._patience_s))
        if said.unsure:
            return None
        line = said.text.strip().partition("\n")[0]
        return "" if line in ("N/A", "NULL", "(null)") else line

    def probe(self, id: str) -> Said:
        """What a running job uses on its nodes, as `probing` reads it; takes a second or two."""
        said = self._run(["squeue", "--noheader", f"--jobs={id}", "--states=RUNNING", "--format=%A|%D"])
        number, _, nodes = said.text.strip().partition("\n")[0].partition("|")
        if not said.ok or not nodes.isdecimal():
            return Said(False, "", said.error, said.unsure)
        return self._run(
            ["srun", "--overlap", f"--jobid={number}", f"--nodes={nodes}", f"--ntasks={nodes}", "--label",
             "--ntasks-per-node=1", "--quiet", "sh", "-c", probing.SCRIPT],
            environ=self._environ | {probing.MARK: "1"},
        )  # fmt: skip

    def verdict(self, id: str, tag: str) -> parsing.Verdict | None:
        """How a job ended, by the controller, then by the accounting; None: nobody knows.

        A controller that was killed gives numbers out again: whose job it is, the tag says.
        """
        said = self._run(["scontrol", "--oneliner", "show", "job", id])
        if said.ok and not re.search(rf"{re.escape(tag)}(?!\d)", said.text):
            return None
        found = parsing.parse_job(said.text) if said.ok else None
        if found is not None:
            return found
        said = self._run(
            ["sacct", "--allocations", "--parsable2", "--noheader", f"--jobs={id}",
             f"--format={parsing.SACCT_FORMAT}"]
        )  # fmt: skip
        return parsing.parse_accounting(said.text, id) if said.ok else None

    def cancel(self, ids: Sequence[str], signal: str = "") -> Said:
        """End jobs, or send them a signal: to the batch shell and to its steps."""
        words = ["scancel", *((f"--signal={signal}", "--full") if signal else ()), *ids]
        return self._run(words)

    def _run(
        self,
        words: Sequence[str],
        input: str = "",
        environ: Mapping[str, str] | None = None,
        cwd: str = "/",
        umask: int = 0o077,
        patience_s: float = 0.0,
    ) -> Said:
        patience_s = patience_s or self._patience_s
        program = shutil.which(words[0])
        if program is None:
            return Said(False, "", f"there is no {words[0]} here")
        try:
            done = subprocess.run(
                [program, *words[1:]],
                input=input.encode(errors="surrogateescape"),
                env=self._environ if environ is None else environ,
                cwd=cwd,
                umask=umask,
                capture_output=True,
                timeout=patience_s,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return Said(False, "", f"{words[0]} did not answer in {patience_s:.0f} s", True)
        except OSError as error:  # the folder is gone, mostly
            return Said(False, "", f"{words[0]} cannot be run in {cwd}: {error.strerror}")
        out, error_text = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        if done.returncode == 0:
            return Said(True, out, error_text)
        return Said(False, out, error_text, parsing.is_unreachable(error_text))


def cleaned(environ: Mapping[str, str]) -> dict[str, str]:
    """Without variables by which an allocation that we happen to be in changes new jobs."""
    return {
        name: value
        for name, value in environ.items()
        if name in KEPT
        or not name.startswith(("SLURM", "SBATCH_", "SQUEUE_", "SALLOC_", "SCANCEL_", "SACCT_"))
    }
