"""Every command in the documents runs, and prints what the documents say it prints.

A `console` block is a session: lines that start with `$ ` are typed into bash, the lines below
must match what comes out, where `…` stands for anything. The lines of an `sh` block are typed too,
and must succeed; its output is not shown. The blocks of one file are one session, in their order.
Scripts, which begin with `#!`, are not typed. The lines of a `bash` block need another machine, root,
a cluster or a person at a terminal: they are not typed, but those of gflow are parsed.
"""

from __future__ import annotations

import importlib
import itertools
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from benchmarks import page

from gflow.cli.registry import PROGRAMS, TOOLS, describe
from gflow.config.load import load
from gflow.options.parse import parse
from tests.harness import BIN, Box

ROOT = Path(__file__).parents[2]
# Played by tests/slurm, where there is a cluster.
ELSEWHERE = ("slurm.md", "slurm-files.md")
DOCUMENTS = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name not in ELSEWHERE),
]
# Short pages. Those with sessions are played by test_howto.
SHORT = [
    path for folder in ("start", "howto", "migrate") for path in sorted((ROOT / "docs" / folder).glob("*.md"))
]
# All that a reader sees; docs/reference is generated.
PAGES = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "reference"),
]
COMMANDS = ("gflow", *PROGRAMS)
SETTINGS = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(console|sh)\n(?!#!)(.*?)^```", re.MULTILINE | re.DOTALL)
FILES = {
    "train.py": "import sys\nprint('trained with', *sys.argv[1:])\n",
    "train.sh": "#!/bin/bash\npython3 train.py\n",
    "prepare.sh": "echo prepared\n",
    "evaluate.sh": "echo evaluated\n",
}


def sessions() -> list[Path]:
    return [path for path in DOCUMENTS if BLOCK.search(path.read_text())]


@pytest.mark.parametrize("path", sessions(), ids=lambda path: path.name)
def test_document_is_true(box: Box, path: Path) -> None:
    """A short name: curl reaches the socket by its path, which holds the name and has 107 bytes at most."""
    play(box, path)


@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS + SHORT if SETTINGS.search(path.read_text())], ids=str
)
def test_settings_in_a_document_can_be_read(tmp_path: Path, path: Path) -> None:
    for number, text in enumerate(SETTINGS.findall(path.read_text())):
        file = tmp_path / f"{number}.toml"
        file.write_text(text)
        assert not load({}, {}, str(file)).notes, text


def play(box: Box, path: Path) -> None:
    """Type all that the document shows, and compare."""
    for name, text in FILES.items():
        (box.work / name).write_text(text)
        (box.work / name).chmod(0o755)
    _install_stubs(box)
    for command, expected in _commands(path.read_text()):
        done = subprocess.run(
            [
                "bash",
                "-c",
                f"{_carried(box)}{command}\nCODE=$?; declare -p ID > {box.root}/vars 2>/dev/null; exit $CODE",
            ],
            env=box.env,
            cwd=box.work,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        assert done.stderr == "", command
        if expected is None:
            assert done.returncode == 0, f"$ {command}\n{done.stdout}"
            continue
        pattern = ".*".join(re.escape(part) for part in expected.split("…"))
        assert re.fullmatch(pattern, done.stdout), f"$ {command}\n{done.stdout}"


def _carried(box: Box) -> str:
    """Variables that an earlier line of the session set."""
    path = box.root / "vars"
    return path.read_text() if path.exists() else ""


def _install_stubs(box: Box) -> None:
    """Programs that would install gflow: it is installed already. tests/packages runs the real ones."""
    folder = box.root / "stubs"
    folder.mkdir()
    (folder / "pipx").write_text('#!/bin/sh\ntest "$*" = "install ."\n')
    (folder / "pipx").chmod(0o755)
    box.env["PATH"] = f"{folder}:{box.env['PATH']}"


def _commands(text: str) -> list[tuple[str, str | None]]:
    """Commands and what they print; None: not shown."""
    commands: list[tuple[str, str | None]] = []
    for kind, block in BLOCK.findall(text):
        for line in block.splitlines(keepends=True):
            if kind == "sh":
                commands.append((line.strip(), None))
            elif line.startswith("$ "):
                commands.append((line[2:].strip(), ""))
            else:
                command, output = commands.pop()
                commands.append((command, f"{output}{line}"))
    return commands


def test_readme_shows_five_commands_after_installing() -> None:
    """They are typed in this order by test_document_is_true."""
    commands = _commands((ROOT / "README.md").read_text())
    install, *session = [command.split()[:2] for command, _ in commands]
    assert install == ["pipx", "install"]
    assert session == [["gflowd", "up"], ["gbatch", "--gpus"], ["gqueue"], ["gjob", "log"], ["gcancel", "1"]]


def test_measured_rows_of_the_readme_are_those_of_the_benchmark_page() -> None:
    rows = list(page.readme_rows((ROOT / "docs/benchmarks.md").read_text()))
    shown = [line for line in (ROOT / "README.md").read_text().splitlines() if f"{page.MARK} |" in line]
    assert shown == rows, "run python3 -m benchmarks.page --readme"
    assert len(rows) == len(page.MEASURED) and not any("{" in row for row in rows)


def test_links_between_documents_lead_somewhere() -> None:
    """The pages of docs/: test_site."""
    for path in [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", path.read_text()):
            assert (path.parent / link).exists(), f"{path.name}: {link}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_block_says_what_it_is(path: Path) -> None:
    """Without a label no test would read a block."""
    fences = re.findall(r"^```(.*)$", path.read_text(), re.MULTILINE)
    assert "" not in fences[::2] and set(fences[1::2]) <= {""}


def typed_elsewhere() -> list[tuple[str, str]]:
    """Each line of a `bash` block, and each command of questions.md, that calls gflow; with its page."""
    blocks = [
        (path.name, block)
        for path in PAGES
        for block in re.findall(r"^```bash\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    ]
    lines = [(name, line) for name, block in blocks for line in block.replace("\\\n", " ").splitlines()]
    questions = (ROOT / "docs/questions.md").read_text()
    lines += [("questions.md", line) for line in re.findall("`([^`\n]+)`", questions)]
    return [(name, line) for name, line in lines if re.match(rf"(sudo )?({'|'.join(COMMANDS)}) ", line)]


@pytest.mark.parametrize(("page_name", "line"), typed_elsewhere())
def test_command_that_is_typed_elsewhere_can_be_parsed(page_name: str, line: str) -> None:
    words = shlex.split(line.removeprefix("sudo "), comments=True)
    program, *rest = itertools.takewhile(lambda word: word not in ("|", ">", "&&", ";"), words)
    if program == "gflow":
        assert rest[0] in TOOLS
        assert unknown_options(rest) == []
        return
    info = describe(program)
    command = info.aliases.get(rest[0], rest[0]) if rest else ""
    if program in ("gjob", "gctl", "gflowd"):
        assert command in info.commands
    parse(rest, info.of_command.get(command, info.options), until_word=info.until_word)


def unknown_options(words: list[str]) -> list[str]:
    """Options that the help of `gflow NAME` does not have."""
    line = [str(BIN / "gflow"), words[0], "--help"]
    text = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    before = itertools.takewhile(lambda word: word != "--", words)
    return [word for word in before if re.fullmatch("--[a-z-]+", word) and not re.search(rf"{word}\b", text)]


def test_commands_that_are_typed_elsewhere_are_found() -> None:
    found = typed_elsewhere()
    assert len(found) > 25 and {"sweeps.md", "multi-user.md", "slurm.md", "questions.md"} <= {
        name for name, _ in found
    }
    assert unknown_options(["web", "--no-such-option", "--", "--behind"]) == ["--no-such-option"]


def test_reference_matches_the_tables() -> None:
    import runpy

    generator = runpy.run_path(str(ROOT / "scripts/gen_docs.py"))
    pages = generator["reference"]()
    assert {name: (ROOT / "docs" / name).read_text() for name in pages} == pages, "run make docs"
    found = {f"reference/{path.name}" for path in (ROOT / "docs/reference").iterdir()}
    assert found == set(pages) - {"reference.md"}, "run make docs"
    assert (ROOT / "docs/modules.md").read_text() == generator["modules"](), "run make docs"
    assert generator["KEYWORDS"].read_text() == generator["keywords"](), "run make docs"


@pytest.mark.parametrize("package", ["gflow", "gflow.fit", "gflow.train"])
def test_reference_of_a_package_has_what_it_exports(package: str) -> None:
    """Not what one of its functions imports for itself."""
    text = (ROOT / "docs/reference/python.md").read_text()
    found = set(re.findall(rf"^### {re.escape(package)}\.(\w+)$", text, re.MULTILINE))
    assert found and found <= set(dir(importlib.import_module(package)))


def test_manual_pages_match_the_help() -> None:
    import runpy

    pages = runpy.run_path(str(ROOT / "scripts/man_pages.py"))["make_pages"]()
    found = {path.name: path.read_text() for path in (ROOT / "share/man/man1").iterdir()}
    assert found == pages, "run make docs"
    assert {"gbatch.1", "gflow-fit.1", "gjob-log.1"} < set(pages)
    assert "\n.TP\n\\fB\\-\\-dry\\-run\\fR\nlist the jobs" in pages["gcancel.1"]


def test_terms_of_the_manual_are_options_and_commands_alone() -> None:
    """The term is bold, its explanation is not."""
    terms = [
        (path.name, term.replace("\\-", "-"))
        for path in (ROOT / "share/man/man1").iterdir()
        for term in re.findall(r"^\.TP\n\\fB(.*)\\fR\n", path.read_text(), re.MULTILINE)
    ]
    options = [one for one in terms if one[1].startswith("-")]
    assert len(options) > 400
    assert [one for one in options if not re.fullmatch(r"(-\S, )?--[\w-]+( \S+)?", one[1])] == []
    assert ("gflow.1", "slurm-aliases") in terms and ("gjob.1", "close-sessions") in terms


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff")
def test_manual_pages_have_no_warnings() -> None:
    pages = sorted((ROOT / "share/man/man1").iterdir())
    line = ["groff", "-man", "-ww", "-z", "-k", "-Tutf8", *map(str, pages)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_make_demo_needs_no_test_tools(tmp_path: Path) -> None:
    """Its set-up must be quick on a fresh machine: neither shells by apt nor the tools of this repository."""
    line = ["make", "-n", "-C", str(ROOT), f"VENV={tmp_path / 'venv'}", "demo"]
    steps = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert "scripts/setup " in steps and "setup-tests" not in steps
    setup = (ROOT / "scripts/setup").read_text()
    assert "[dev]" not in setup and "zsh" not in setup


def test_laws_name_existing_tests() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", text, re.MULTILINE)
    laws = re.findall(r"^(\d+)\. \*\*", text.partition("## Laws")[2], re.MULTILINE)
    assert [number for number, _ in rows] == laws
    for _, tests in rows:
        named = re.findall(r"`(tests/[^`]+)`", tests)
        assert named and all((ROOT / name).exists() for name in named), tests


def test_every_fault_has_a_test_that_exists() -> None:
    rows = re.findall(
        r"^\| .* \| `(\S+)::(\w+)` \|$", (ROOT / "docs/reliability.md").read_text(), re.MULTILINE
    )
    lines = [
        line for line in (ROOT / "docs/reliability.md").read_text().splitlines() if line.startswith("| ")
    ]
    assert len(rows) == len(lines) - sum(line.startswith("| fault |") for line in lines)
    for file, name in rows:
        assert re.search(rf"^\s*def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE), name


def test_the_demo_installs_no_development_tools() -> None:
    words = ["make", "--dry-run", "--what-if", "pyproject.toml", "demo"]
    text = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "scripts/setup " in text and "setup-tests" not in text
