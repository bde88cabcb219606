"""Slurm's commands, run with a time limit and without the variables that would change what they mean."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gflow.targets.slurm import parsing, probing

# Slurm itself gives up after 9 seconds or so when its controller does not answer.
PATIENCE_S = 12.0
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

    def submit(
        self, script: str, environ: Mapping[str, str], cwd: str, umask: int, *, test: bool = False
    ) -> Said:
        """The id under which Slurm has taken the script, or why not; `test`: only when it would start."""
        where = {name: value for name, value in self._environ.items() if name in KEPT}
        words = ["sbatch", "--test-only" if test else "--parsable"]
        said = self._run(words, script, cleaned(environ) | where, cwd, umask)
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

    def partitions(self) -> list[str]:
        """The names of all partitions."""
        return list(dict.fromkeys(self._run(["sinfo", "--noheader", "--format=%R"]).text.split()))

    def start_of(self, id: str) -> str:
        """When Slurm expects a job to start; empty: it does not say."""
        said = self._run(["squeue", "--noheader", "--start", f"--jobs={id}", "--format=%S"])
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
        if said.ok and tag not in said.text:
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
    ) -> Said:
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
                timeout=self._patience_s,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return Said(False, "", f"{words[0]} did not answer in {self._patience_s:.0f} s", True)
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
