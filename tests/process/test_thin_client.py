"""Thin clients: the daemon reads the words of a command, and they print what the Python client would.

Each command line is run by the native client, by the thin Python client, and by `gflow.cli` alone, each with
a daemon of its own that has got the same commands before.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import gflow
from gflow.client.hot_path import IN_DAEMON
from tests.harness import BIN, Box
from tests.process.test_gqueue import Terminal

# Kinds of segments of an ELF file: a part of the program, and the path of the dynamic linker.
PT_LOAD, PT_INTERP = 1, 3
ROOT = Path(gflow.__file__).parent.parent
DOCS = (ROOT.parent / "README.md", *sorted((ROOT.parent / "docs").rglob("*.md")))
CODE = "import sys;s=sys.argv;sys.path.append(s.pop(1));from gflow.entry import main;main(s.pop(1),s.pop(1))"
PYTHON = [sys.executable, "-P", "-X", "utf8", "-c", CODE, str(ROOT)]
pytestmark = pytest.mark.skipif(
    (BIN / "gbatch").read_bytes()[:4] != b"\x7fELF", reason="the native client was not built"
)
# Served by the daemon, in this order: later lines show what earlier ones did.
SERVED = """
gbatch --hold true
gbatch --hold --name déjà --priority 30 true ünïcode 'a b' ''
gbatch --hold 'cd / && echo "$HOME" | cat'
gbatch --hold --gpus 1 --time 90 --memory 2G python3 train.py --gpus 2
gbatch --hold -n 4 true
gbatch --hold --parsable --array 1-10%2 true
gbatch --hold --param lr=0.1,0.01 --param seed=1-3 true {lr} {seed}
gbatch --hold --depends-on @ -- true --hold
gbatch --hold /usr/bin/env -i
gbatch --hold ./prog 1
gbatch --hold ./prog
gbatch --hold ../work/prog 1
gbatch --hold /usr/../usr/bin//env 1
gjob show 3-9
gbatch --hold --gres gpu:1 --mem 4G true
gbatch --gpus 99 true
gbatch --gpus none true
gbatch --no-such true
gbatch --time
gbatch --notify-email nobody true
gbatch --hold --depends-on 9999 true
gqueue
gqueue -a
gqueue --all --json
gqueue -o json
gqueue -o csv
gqueue -o yaml -n 2
gqueue -f JOBID,NAME,ST,GPUS,PARAMS,COMMAND -r -id
gqueue --me
gqueue -u nobody
gqueue --group
gqueue --tree
gqueue --collapse
gqueue 1 3-5 g7
gqueue -N 'd*' -s Hold
gqueue --bogus
gqueue -l
gqueue -r
gqueue -o '%i'
gqueue -t Running
gqueue --tree --group
gqueue -s Nonsense
gqueue 99
ginfo
ginfo -l
ginfo info
ginfo --json
gjob show 1
gjob show @
gjob s 2 4
gjob show 1 --json
gjob show g7 --metric loss --highest
gjob show 1-3
gjob show 99
gjob show nonsense
gjob show 1/2
gjob show --bogus 1
gjob history 1
gjob history @ --json
gjob history 9999
gjob usage 1
gjob usage 1 --csv
gjob results g7
gjob results g7 1 --csv --failed
gjob results 1-9 -r loss -s Hold
gjob results 1-3 --json
gjob results 1-3 -o yaml
gjob results 9999
gjob hold 1
gjob hold 9999
gjob hold 1-3,5
gjob r 2
gjob hold 2 3
gjob release 9999
gjob hold --bogus 1
gcancel
gcancel all
gcancel 1
gcancel 1 3
gcancel 9999
gcancel nonsense
gcancel -s USR1
gcancel --batch 4
gcancel --signal USR1 4
gcancel --signal NONSENSE 4
gcancel --signal USR1 --now 4
gcancel --signal USR1 -s Running
gcancel -n 'no-such*'
gcancel --me -n déjà
gcancel -u nobody --all
gcancel 4 -s Hold --now
gcancel --help
gjob show 4
gbatch --help
gbatch --gpus 1 -h true
gqueue --help
ginfo --help
ginfo -h
""".strip().splitlines()
# Left to the client.
LEFT = """
gbatch
gbatch --version
gbatch ''
gbatch no-such-program
gbatch ./no-such-file
gbatch script.sh
gbatch --hold ./script.sh 1 2
gbatch --hold --wrap 'echo 1'
gbatch --hold --export NONE true
gbatch --hold --chdir / true
gbatch --hold --json true
gbatch --json --gpus 99 true
gbatch --dry-run --gpus 1 true
gbatch --hold --begin now+2h true
gqueue --since 2h
gqueue --json 99
gqueue --json --bogus
gqueue --target nonsense
ginfo nonsense
ginfo --target nonsense
gjob
gjob --help
gjob show
gjob show --json 99
gjob nonsense
gjob why 1
gjob release --at nonsense 5
gjob hold
gjob hold --json 5
gcancel --dry-run 5
gcancel --json 5
gcancel --json 9999
gjob history
gjob history 1 2
gjob history 1/2
gjob usage --json 9999
gjob results --help
gjob hold 99
""".strip().splitlines()


# What the daemon may serve.
READ = re.compile(r"(gbatch|gqueue|ginfo|gcancel|gjob (show|history|usage|results|hold|release))( |$)")
# What waits, watches, needs a cluster or a shell, or shows times.
LOCAL = re.compile(r"[|;&<>\\]|\$\(|…|--wait|-W |--watch|-w|--since|--on |--overflow")


def of_the_tests() -> list[str]:
    """The command lines of the tests of processes that consist of literals, and that the daemon may serve."""
    found: dict[str, None] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            words = [one.value for one in node.args if isinstance(one, ast.Constant)]
            if len(words) < max(1, len(node.args)) or not all(isinstance(word, str) for word in words):
                continue
            line = shlex.join(["gbatch"] * (node.func.attr == "submit") + words)
            if READ.match(line):
                found[line] = None
    return [line for line in found if not LOCAL.search(line)]


def of_the_docs() -> list[str]:
    """The commands of the documents that the daemon may serve, as shown there, if they need no shell."""
    found = dict.fromkeys(
        line.removeprefix("$ ").partition("  #")[0].strip()
        for path in DOCS
        for line in path.read_text().splitlines()
        if READ.match(line.removeprefix("$ "))
    )
    return [line for line in found if not LOCAL.search(line)]


class Client:
    """A way to run commands, with a daemon of its own that starts no job. Its folder has two names."""

    def __init__(self, root: Path, command: list[str]) -> None:
        self.command = command
        self.box = Box(root).up("--simulate-gpus", "2x80G", "--cpus", "4")
        self.box.env |= {"GFLOW_EXPORT": "A", "EMPTY": "", "ODD": "\udcff=\n"}
        (self.box.work / "script.sh").write_text("#!/bin/sh\n# GFLOW --hold --gpus 1\necho $1\n")
        (self.box.work / "script.sh").chmod(0o755)
        shutil.copy("/bin/true", self.box.work / "prog")
        self.folder = root / "link"
        self.folder.symlink_to("work")
        self.run("gctl drain")

    def argv(self, line: str) -> list[str]:
        program, *words = shlex.split(line)
        if not self.command:
            return [str(BIN / program), *words]
        return [*self.command[:-1], program, self.command[-1], *words]

    def run(self, line: str) -> tuple[int, str, str]:
        done = subprocess.run(
            self.argv(line),
            cwd=self.folder,
            env=self.box.env | {"PWD": str(self.folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        return done.returncode, self.plain(done.stdout), self.plain(done.stderr)

    def plain(self, text: bytes) -> str:
        """Without what differs between daemons: times, processes, and the folder."""
        shown = text.decode(errors="surrogateescape").replace(str(self.box.root), "ROOT")
        shown = re.sub(r"\bpid \d+", "pid", shown)
        shown = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+Z)?", "TIME", shown)
        return re.sub(r"\b\d\d:\d\d(:\d\d)?\b|(?<=_s\":)[\d.]+|\b1\d{9}\.\d+", "TIME", shown)


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Client]]:
    made = [
        Client(tmp_path_factory.mktemp(name), command)
        for name, command in (("n", []), ("t", [*PYTHON, ""]), ("c", [*PYTHON, "-"]))
    ]
    yield made
    for client in made:
        client.box.clean_up()


def compare(clients: list[Client], lines: list[str]) -> None:
    """Run each line by every client at once; jobs are held, so that all daemons have the same state."""
    with ThreadPoolExecutor(len(clients)) as pool:
        for line in lines:
            if line.startswith("gbatch ") and line not in LEFT and "--hold" not in line:
                line = line.replace("gbatch ", "gbatch --hold ", 1)
            native, thin, full = pool.map(Client.run, clients, [line] * len(clients))
            assert native == thin == full, line


def test_every_client_prints_the_same(clients: list[Client]) -> None:
    compare(clients, [*SERVED, *LEFT, *of_the_docs()])
    native, thin, full = (client.run("gqueue -a --limit 0 --json")[1] for client in clients)
    assert native == thin == full and native.count('{"id":') > 30


@pytest.mark.slow
def test_every_client_prints_the_same_for_other_tests(clients: list[Client]) -> None:
    lines = of_the_tests()
    assert len(lines) > 200
    compare(clients, lines)
    native, thin, full = (client.run("gqueue -a --limit 0 --json")[1] for client in clients)
    assert native == thin == full


@pytest.mark.parametrize(
    "line",
    [
        "gqueue -a", "gqueue -a --expand", "gqueue --no-such", "gjob show 2", "gjob show 99", "ginfo",
        "gbatch --hold -n 4 python3 train.py --gpus 2", "gbatch --hold --param seed=1-3 true {seed}",
        "gjob history 1", "gjob results 1-9",
        "gjob hold 1", "gjob hold 1-3", "gcancel 9999", "gcancel -n 'no*'", "gcancel --dry-run 1",
        "gbatch --gpus 99 true", "gbatch --notify-email nobody true", "gbatch --hold --array 1-5 true",
    ],
)  # fmt: skip
@pytest.mark.parametrize("color", ["", "1"])
def test_every_client_prints_the_same_on_a_terminal(clients: list[Client], line: str, color: str) -> None:
    shown = [
        client.plain(Terminal(client.box, *client.argv(line), columns=44, NO_COLOR=color).all().encode())
        for client in clients
    ]
    assert shown[0] == shown[1] == shown[2] and shown[0]


def test_the_job_of_every_client_inherits_the_same(clients: list[Client]) -> None:
    found = set()
    for client in clients:
        client.run("gctl resume")
        number = client.run("gbatch --parsable --name inherits sh -c 'pwd; umask; env | LC_ALL=C sort'")[1]
        assert client.box.finished(int(number))["state"] == "Finished"
        text = client.plain((client.box.data / "logs" / f"{int(number)}.log").read_bytes())
        found.add("\n".join(line for line in text.splitlines() if not line.startswith("GFLOW_JOB")))
    (shown,) = found
    assert "EMPTY=\n" in shown and "ODD=" in shown and "GFLOW_EXPORT" not in shown


def test_served_commands_need_no_dynamic_linker() -> None:
    compiler = shutil.which("cc")
    line = [str(compiler), "-print-file-name=rcrt1.o"]
    if compiler is None or not Path(subprocess.check_output(line, text=True).strip()).is_absolute():
        pytest.skip("no static C library")
    for program in IN_DAEMON:
        content = (BIN / program).read_bytes()
        (table,), (size, count) = struct.unpack_from("Q", content, 32), struct.unpack_from("HH", content, 54)
        kinds = [struct.unpack_from("I", content, table + size * index)[0] for index in range(count)]
        assert PT_LOAD in kinds and PT_INTERP not in kinds, program


def test_served_commands_need_no_python(daemon: Box, tmp_path: Path) -> None:
    for program in IN_DAEMON:
        shutil.copy(BIN / program, tmp_path)
    (tmp_path / "python3").write_text("#!/bin/sh\necho is-run-by-python >&2\n")
    (tmp_path / "python3").chmod(0o755)
    shutil.copy("/bin/true", daemon.work / "prog")

    def run(line: str) -> subprocess.CompletedProcess[str]:
        program, *words = shlex.split(line)
        return subprocess.run(
            [tmp_path / program, *words], cwd=daemon.work, env=daemon.env, capture_output=True, text=True
        )

    assert run("gbatch --hold true").stdout == "Submitted batch job 1\n"
    for line in SERVED:
        assert "is-run-by-python" not in run(line).stderr, line
    assert run("gqueue --version").stderr == "is-run-by-python\n"
