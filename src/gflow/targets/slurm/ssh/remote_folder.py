"""The shared folder of a cluster that is reached by SSH, with the methods of `SharedFolder`.

Each daemon has a folder of its own there, `~/.gflow/runs/ID`: two machines of a user number their jobs alike.
Every call is one round trip, and writes many files at once. What a look has read is kept: claims and exit
records come from it.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from gflow.targets.slurm.shared_folder import (
    GFLOW,
    NAME,
    AskedPart,
    Claim,
    Exit,
    RunFile,
    RunFiles,
    parse_asked,
    parse_exit,
    parse_parts,
    summarize,
)
from gflow.targets.slurm.ssh.remote_shell import emit, quote

# How paths in this folder begin while it is not known where the folder is.
OWN = "~gflow/"
# Seconds between two looks: the minimum, and the maximum while nothing changes.
LOOK_S, LONGEST_LOOK_S = 1.0, 10.0
# Bytes of one script.
MOST_BYTES = 4 << 20


class Result(Protocol):
    """The result of a script; `code` is None if the connection was lost."""

    @property
    def code(self) -> int | None: ...
    @property
    def output(self) -> bytes: ...
    @property
    def error(self) -> str: ...


class Shell(Protocol):
    """Runs scripts on the login node."""

    def run_script(self, body: str, *, timeout_s: float, umask: int = 0o077) -> Result: ...


class Unreachable(OSError):
    """The login node does not answer: the request may or may not have taken effect."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EHOSTUNREACH, why)


class Place(NamedTuple):
    """The account on the login node: its home, name and uid; by how much the clock there is ahead."""

    home: str
    user: str
    uid: str
    ahead_s: float = 0.0


class RemoteFolder:
    """The folder of one daemon on one cluster. `base`: the folder of gflow there, `~/.gflow`."""

    is_remote = True

    def __init__(
        self,
        shell: Shell,
        base: str,
        daemon: Callable[[], str],
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shell, self._base, self._daemon, self._timeout_s = shell, base, daemon, timeout_s
        self._clock = clock
        # The folder; begins with ~ until it was opened.
        self.folder = f"{base}/runs"
        self.place: Place | None = None
        self._checksum = ""
        self._kinds: dict[str, list[str]] = {}
        self._files: dict[str, RunFiles] = {}
        self._exits: dict[str, Exit] = {}
        self._asked: dict[str, list[str]] = {}
        # The output of a look that came with a listing of the queue.
        self._offered: bytes | None = None
        self._look_at, self._pause_s = 0.0, LOOK_S

    # ------------------------------------------------------------ the folder

    def daemon_id(self) -> str:
        """The identity of this daemon in job tags. Creates the folder there."""
        daemon = self._daemon()
        output = self._run(OPEN.format(base=_expand(self._base), id=quote(daemon)))
        lines = output.decode(errors="surrogateescape").split("\n")
        if len(lines) < 5:
            raise OSError(errno.EIO, "the login node gave no folder")
        ahead_s = int(lines[4]) - time.time() if lines[4].isdecimal() else 0.0
        self.folder, self.place = lines[0], Place(lines[1], lines[2], lines[3], ahead_s)
        return daemon

    def expand(self, path: str) -> str:
        """A path there: `~/` is the home of the account, `~gflow/` is this folder."""
        home = self.place.home if self.place is not None else "~"
        if path.startswith(OWN):
            return self.folder + "/" + path.removeprefix(OWN)
        return home + path[1:] if path == "~" or path.startswith("~/") else path

    def path(self, name: str, what: str) -> str:
        return f"{self.folder}/{name}.{what}"

    def has_news(self) -> bool:
        """Whether a look is due. Only a look tells whether a file was created there."""
        return self._clock() >= self._look_at

    def look(self) -> dict[str, RunFiles]:
        """List the folder: the files of every run, by run name. OSError: it is not the folder of gflow."""
        self._offered = None  # it may be older than this one
        return self._apply_look(self._run(self.look_script(), in_folder=False))

    def look_after_poll(self) -> dict[str, RunFiles]:
        """The look that came with a listing of the queue; a further one if none did."""
        offered, self._offered = self._offered, None
        return self.look() if offered is None else self._apply_look(offered)

    def offer(self, output: bytes) -> None:
        """Take the output of `look_script`, which was run together with another command."""
        self._offered = output

    def look_script(self) -> str:
        """A script that prints the names of all files and the content of exit records, if any changed."""
        return LOOK.format(folder=quote(self.folder), known=quote(self._checksum))

    def _apply_look(self, output: bytes) -> dict[str, RunFiles]:
        first, _, rest = output.decode(errors="replace").partition("\n")
        is_same = first == "same"
        self._pause_s = min(LONGEST_LOOK_S, self._pause_s * 1.5) if is_same else LOOK_S
        self._look_at = self._clock() + self._pause_s
        if not is_same:
            self._read_listing(first, rest)
        return self._files

    def _read_listing(self, checksum: str, text: str) -> None:
        names, _, records = text.partition("\n/\n")
        entries = names.split("\n")
        if "id" not in entries:
            raise FileNotFoundError(errno.ENOENT, "the files of gflow are not there")
        kinds: dict[str, list[str]] = {}
        for entry in entries:
            if match := NAME.fullmatch(entry):
                kinds.setdefault(match[1], []).append(match[2])
        exits: dict[str, Exit] = {}
        for line in records.splitlines():
            kind, _, rest = line.partition(" ")
            name, _, value = rest.partition(" ")
            if kind == "exit" and value:
                exits[name] = parse_exit(value)
            elif kind == "asked":
                self._asked.setdefault(name, []).append(value)
        self._kinds, self._exits = kinds, exits
        self._files = {name: summarize(found) for name, found in kinds.items()}
        # A record that could not be read is read with the next look.
        is_complete = all(name in exits for name, found in self._files.items() if found.exit)
        self._checksum = checksum if is_complete else ""

    # ------------------------------------------------------------ the daemon's side

    def write(self, tokens: Iterable[str], files: Iterable[RunFile]) -> None:
        """Create claim tokens and write files of runs atomically, with as few calls as possible."""
        lines = [f"issue {quote(name)} || exit 1" for name in tokens]
        lines += [self._put_line(file) for file in files]
        for part in _parts(lines):
            self._run("\n".join([ISSUE, *part]))
        self._expect_news()

    def put(self, name: str, what: str, content: bytes = b"") -> None:
        """Write a file of a run atomically."""
        self.write((), [RunFile(name, what, content)])

    def note_asked(self, name: str, content: bytes) -> str:
        """Shell lines that write the file `.asked`: they run together with sbatch."""
        self._expect_news()
        return f"cd -- {quote(self.folder)} || exit 1\n{self._put_line(RunFile(name, 'asked', content))}"

    def note_answers(self, name: str, content: bytes) -> None:
        """No-op: the database has the ids, and the queue has the tags."""

    @staticmethod
    def _put_line(file: RunFile) -> str:
        new, path = quote(f".{file.name}.{file.what}"), quote(f"{file.name}.{file.what}")
        # cat, as the printf of some shells does not say that the disk is full.
        content = f"{emit(file.content)} | cat" if file.content else "true"
        return f"{content} > {new} && mv -f {new} {path} || exit 1"

    def withdraw(self, name: str) -> bool:
        """Take the claim token, so that the run can never begin. False: the job has claimed it."""
        return self.withdraw_all([name])[name]

    def withdraw_all(self, names: Sequence[str]) -> dict[str, bool]:
        """Take the claim tokens of these runs: whether each can never begin."""
        found: dict[str, bool] = {}
        lines = [f"withdraw {quote(name)} || exit 1" for name in names]
        for part in _parts(lines):
            for line in self._run("\n".join([WITHDRAW, *part])).decode(errors="replace").splitlines():
                name, _, answer = line.partition(" ")
                found[name] = answer == "yes"
        if missing := [name for name in names if name not in found]:
            raise OSError(errno.EIO, f"no answer about the claim token of {missing[0]}")
        self._expect_news()
        return found

    def has_token(self, name: str) -> bool:
        found = self._files.get(name)
        return found is not None and found.has_token

    def has_progress(self, name: str) -> bool:
        return "progress" in self._kinds.get(name, ())

    def claim_of(self, name: str) -> Claim | None:
        found = self._files.get(name)
        return found.claim if found is not None else None

    def read_exit(self, name: str) -> Exit | None:
        return self._exits.get(name)

    def read_asked(self, name: str) -> dict[int, str]:
        """The Slurm job ids that sbatch answered, by candidate, as of the first look."""
        if name not in self._asked and "asked" not in self._kinds.get(name, ()):
            raise FileNotFoundError(errno.ENOENT, "sbatch was not called for it")
        return parse_asked(self._asked.get(name, []))

    def read_parts(self, name: str) -> list[AskedPart]:
        """The parts of an array that sbatch was called for."""
        return parse_parts(self._asked.get(name, []))

    def clear(self, names: Collection[str]) -> None:
        """Delete all files of these runs."""
        lines = [f"rm -f -- {quote(name)}.* .{quote(name)}.*" for name in names]
        for part in _parts(lines):
            self._run("\n".join(part))

    # ------------------------------------------------------------ calls

    def run_here(self, body: str) -> bytes:
        """The output of lines that run in the folder."""
        return self._run(body)

    def _expect_news(self) -> None:
        self._pause_s = LOOK_S
        self._look_at = min(self._look_at, self._clock() + LOOK_S)

    def _run(self, body: str, *, in_folder: bool = True) -> bytes:
        if in_folder and self.place is not None:
            body = f"cd -- {quote(self.folder)} || exit 1\n{body}"
        result = self._shell.run_script(body, timeout_s=self._timeout_s)
        if result.code is None:
            raise Unreachable(result.error)
        if result.code != 0:
            lines = result.error.splitlines() or [f"a script ended with {result.code}"]
            raise OSError(errno.EIO, lines[-1].strip()[:200])
        return result.output


def _parts(lines: Sequence[str]) -> Iterable[list[str]]:
    """The lines in groups of at most MOST_BYTES, if no single line is larger."""
    part: list[str] = []
    size = 0
    for line in lines:
        if part and size + len(line) > MOST_BYTES:
            yield part
            part, size = [], 0
        part.append(line)
        size += len(line)
    if part:
        yield part


def _expand(path: str) -> str:
    """A path as a word of a shell: `~/` is the home."""
    if path == "~" or path.startswith("~/"):
        return f'"$HOME"{quote(path[1:])}' if path[1:] else '"$HOME"'
    return quote(path)


OPEN = """base={base}
[ -d "$base" ] || mkdir -p -m 700 -- "$base" || exit 1
mkdir -p -- "$base/runs"/{id}/logs && cd -- "$base/runs"/{id} || exit 1
[ -e id ] || {{ echo {id} > .id && mv .id id; }} || exit 1
pwd -L; echo "$HOME"; id -un; id -u; date +%s"""
# The names are those of our own files. The checksum tells whether any was created, renamed or deleted.
LOOK = """cd -- {folder} || exit 1
known={known}
names=$(ls -a) || exit 1
sum=$(printf '%s\\n' "$names" | cksum)
[ "$sum" != "$known" ] || {{ echo same; exit 0; }}
printf '%s\\n%s\\n/\\n' "$sum" "$names"
for file in *.exit; do
  [ ! -e "$file" ] || {{ read -r line < "$file"; echo "exit ${{file%.exit}} $line"; }}
done
[ "$known" ] || for file in *.asked; do
  [ ! -e "$file" ] || while read -r line; do echo "asked ${{file%.asked}} $line"; done < "$file"
done
:"""
# A call whose answer was lost may come late: a run that has begun or was withdrawn gets no second token.
ISSUE = """issue() {
  for file in "$1".claim.* "$1.exit" "$1.ticket"; do [ ! -e "$file" ] || return 0; done
  : > "$1.ticket"
}"""
WITHDRAW = """withdraw() {
  if mv "$1.ticket" "$1.claim.GFLOW" 2>/dev/null; then echo "$1 yes"; return 0; fi
  for file in "$1".claim.* "$1.exit"; do
    case $file in *.claim.GFLOW) ;; *) [ ! -e "$file" ] || { echo "$1 no"; return 0; } ;; esac
  done
  [ ! -e "$1.ticket" ] || { echo "the claim token of $1 cannot be taken" >&2; return 1; }
  : > "$1.claim.GFLOW" && echo "$1 yes"
}""".replace("GFLOW", GFLOW)
