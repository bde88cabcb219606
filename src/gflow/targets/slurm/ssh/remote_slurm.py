"""Slurm's commands on a login node: several submissions in one session, and a look with each listing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gflow.targets.slurm.commands.command_runner import CommandResult
from gflow.targets.slurm.commands.slurm_cli import Slurm, answer_of, queue_words
from gflow.targets.slurm.ssh.remote_folder import RemoteFolder
from gflow.targets.slurm.ssh.remote_shell import command_script, join
from gflow.targets.slurm.ssh.script_batches import ScriptBatches
from gflow.targets.slurm.ssh.ssh_runner import Script, ScriptResult, SshRunner, result_of

UTC = {"TZ": "UTC0"}


class RemoteSlurm(Slurm):
    """The commands of a cluster that is reached by SSH. Only named variables are sent there."""

    def __init__(self, timeout_s: float, ssh: SshRunner, folder: RemoteFolder) -> None:
        # Times in UTC: the time zone of the login node may be another one than here.
        super().__init__(timeout_s, ssh, environ=UTC)
        self._ssh, self._folder = ssh, folder
        self._batches: ScriptBatches[Script, ScriptResult] = ScriptBatches(self._run_batch)

    @property
    def is_here(self) -> bool:
        """True: the first call there tells whether there is a sbatch."""
        return True

    @property
    def user(self) -> str:
        return self._folder.place.user if self._folder.place is not None else ""

    @property
    def uid(self) -> str:
        return self._folder.place.uid if self._folder.place is not None else ""

    @property
    def ahead_s(self) -> float:
        """By how many seconds the clock there is ahead."""
        return self._folder.place.ahead_s if self._folder.place is not None else 0.0

    def submit(
        self, script: str, environ: Mapping[str, str], cwd: str, umask: int, *, test: bool = False
    ) -> CommandResult:
        return super().submit(script, {**environ, **UTC} if test else environ, cwd, umask, test=test)

    def submit_after(
        self, before: str, script: str, environ: Mapping[str, str], cwd: str, umask: int
    ) -> CommandResult:
        """Submit a script after these shell lines, together with other submissions."""
        text = script.encode(errors="surrogateescape")
        try:
            command = command_script(["sbatch", "--parsable"], environ, text, cwd)
        except ValueError as error:
            return CommandResult(False, "", f"invalid job: {error}")
        body = f"(\n{before}\n) || exit 1\numask {umask:03o}\n{command}"
        return answer_of(result_of(self._batches.run(Script(body))))

    def _run_batch(self, scripts: Sequence[Script]) -> list[ScriptResult]:
        return self._ssh.run_scripts(scripts, timeout_s=self._timeout_s * min(4, len(scripts)))

    def queue(self) -> CommandResult:
        """All jobs of the account that Slurm still knows; then a look at the folder, in the same session."""
        scripts = [Script(join(queue_words(self.uid))), Script(self._folder.look_script())]
        listing, look = self._ssh.run_scripts(scripts, timeout_s=self._timeout_s)
        if look.code == 0:
            self._folder.offer(look.output)
        return result_of(listing)
