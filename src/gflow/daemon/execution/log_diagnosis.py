"""The diagnosis of an ended job in the daemon: its log is read with the rights of its owner, in a thread."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from typing import Any

from gflow.daemon.execution.log_reader import open_log
from gflow.diagnosis.circumstances import SHARED_MEMORY, BatchPlan, Disk
from gflow.diagnosis.diagnose import diagnose
from gflow.diagnosis.job_end import (
    READ,
    EndOfLog,
    circumstances_of,
    diagnosis_view,
    end_of,
    facts_of,
)
from gflow.errors import Refused, clean
from gflow.targets.file_rights import FileOpener
from gflow.text.diagnosis import diagnosis_page

# Bytes of the largest plan that is read.
MOST_PLAN = 1 << 20


def diagnose_end(
    job: dict[str, Any], ended: dict[str, Any], path: str, files: FileOpener, why_not: str
) -> tuple[dict[str, Any], str]:
    """The diagnosis of a job, as the API shows it and as text.

    `ended`: further facts about its end (`EndFacts`). `path`: of its log; empty: it is
    not read, because of `why_not`. `files` opens it.
    """
    start, content, end = 0, b"", EndOfLog(missing=why_not)
    around = circumstances_of(job, ended)
    if job["target"] == "local":
        around = around._replace(
            host_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
        )
    if path:
        try:
            start, content, end = read_end(path, files)
        except Refused as error:
            end = EndOfLog(missing=error.message)
        disks = look_at_disks([job["cwd"], os.path.dirname(path), SHARED_MEMORY], files)
        around = around._replace(disks=tuple(disks), plan=read_plan(job["command"], job["cwd"], files))
    found = diagnose(facts_of(job), end.text, around)
    view = diagnosis_view(job, found, end)
    for one, shown in zip(found.findings, view["findings"], strict=True):
        if one.evidence and one.evidence.line is not None:
            shown["evidence"]["offset"] = start + _place_of(content, one.evidence.line)
    return view, clean_lines(diagnosis_page(job, found, end.first_line, end.missing))


def clean_lines(page: str) -> str:
    """A page without control characters: it quotes names and logs."""
    return "".join(f"{clean(line)}\n" for line in page.splitlines())


def read_end(path: str, files: FileOpener) -> tuple[int, bytes, EndOfLog]:
    """The offset of the first line that is judged, the bytes from there on, and their text."""
    with open_log(path, files) as fd:
        size = os.fstat(fd).st_size if fd is not None else 0
        start = max(0, size - READ)
        content = os.pread(fd, READ, start) if fd is not None else b""
    end = end_of(content, is_whole=not start)
    if fd is None:
        end.missing = "there is no log"
    return start + end.skipped, content[end.skipped :], end


def _place_of(content: bytes, line: int) -> int:
    """The offset of the first byte of a line, from 0."""
    place = 0
    for _ in range(line):
        place = content.find(b"\n", place) + 1
    return place


def read_plan(command: list[str], folder: str, files: FileOpener) -> BatchPlan | None:
    """The plan that the command names (`gflow launch --plan FILE`), if it can be read."""
    words = " ".join(command).replace("=", " ").split()
    path = next((value for name, value in pairwise(words) if name == "--plan"), "")
    if not path:
        return None
    try:
        with open(files.open_file(os.path.join(folder, path)), "rb") as file:
            batch = json.loads(file.read(MOST_PLAN))["chosen"]["micro_batch"]
    except (OSError, Refused, ValueError, TypeError, LookupError):
        return None
    return BatchPlan(path, batch) if type(batch) is int else None


def look_at_disks(folders: list[str], files: FileOpener) -> list[Disk]:
    """The file systems of these folders, each once, as they are now."""
    found: dict[int, Disk] = {}
    for folder in filter(None, folders):
        try:
            device, disk = _look_at(files.open_folder(folder))
        except OSError:
            continue
        unit = disk.f_frsize / (1 << 20)
        has_files = disk.f_favail > 0 or not disk.f_files
        found.setdefault(device, Disk(folder, disk.f_bavail * unit, disk.f_blocks * unit, has_files))
    return list(found.values())


def _look_at(fd: int) -> tuple[int, os.statvfs_result]:
    """The device and the file system of an open folder, which is closed."""
    try:
        return os.fstat(fd).st_dev, os.fstatvfs(fd)
    finally:
        os.close(fd)
