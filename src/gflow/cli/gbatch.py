"""gbatch beyond the hot path: scripts, shell lines, sweeps from files, --wait, --json, --help."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from gflow.client import hot_path, http
from gflow.client.request_builder import describe
from gflow.errors import Unreachable
from gflow.options.job_options import GBATCH
from gflow.options.parse import parse
from gflow.options.plain_submission import letter_note, terminal_notes


def run(words: list[str]) -> int:
    if words[:1] == ["new"]:
        from gflow.cli.gbatch_template import new_script

        return new_script(words[1:])
    values, command = parse(words, GBATCH, until_word=True)
    if "help" in values:
        from gflow.options.commands.help_pages import help_page

        sys.stdout.write(help_page("gbatch"))
        return 0
    if "version" in values:
        from gflow.cli.main import version

        return version("gbatch")
    _write_notes(letter_note(values, words))
    job = describe(values, command)
    if os.isatty(2):
        _write_notes(terminal_notes(json.loads(job)["options"], command, values.get("param", ())))
    body = hot_path.submission(os.urandom(16).hex(), job)
    return _dry_run(body, values) if values.keys() & {"dry-run", "test-only"} else _submit(body, values)


def _write_notes(text: str) -> None:
    hot_path.write_folded(2, text.encode(errors="replace"))


def _submit(body: bytes, values: dict[str, Any]) -> int:
    if "wait" not in values and "json" not in values:
        path = "/jobs?parsable" if "parsable" in values else "/jobs?named" if os.isatty(1) else "/jobs"
        status, headers, text = hot_path.deliver(body, path)
        if status >= 400:
            hot_path.write_folded(2, b"gbatch: " + text)
            return hot_path.exit_code(headers)
        hot_path.print_note(headers)
        hot_path.write(1, b"" if "quiet" in values else text)
        return 0
    answer = _json(*hot_path.deliver(body, "/jobs", "application/json"))
    if "json" in values and "wait" not in values:
        _write(answer)
        return 0
    jobs = answer["jobs"]
    if "json" not in values and "quiet" not in values:
        from gflow.text.submissions import group_lines, submitted_line

        ids = [str(job["id"]) for job in jobs]
        names = [job["name"] if os.isatty(1) else "" for job in jobs]
        lines = (
            "\n".join(ids) + "\n"
            if "parsable" in values
            else "".join(map(submitted_line, ids, names)) + group_lines(len(ids), jobs[0]["group_id"] or 0)
        )
        hot_path.write(1, lines.encode())
    return _wait(jobs, as_json="json" in values)


def _json(status: int, headers: bytes, content: bytes) -> Any:
    if status >= 400:
        raise http.refusal(headers, content, "application/json")
    hot_path.print_note(headers)
    return json.loads(content)


def _write(data: Any) -> None:
    hot_path.write(1, http.json_line(json.dumps(data).encode()))


def _wait(jobs: list[dict[str, Any]], *, as_json: bool) -> int:
    from gflow.client.wait import describe_end, wait_for_all

    final, code = wait_for_all([str(job["id"]) for job in jobs])
    if as_json:
        _write({"jobs": final, "total": len(final)})
        return code
    for text in filter(None, map(describe_end, final)):
        sys.stderr.write(f"gbatch: {text}\n")
    return code


def _dry_run(body: bytes, values: dict[str, Any]) -> int:
    """Show what would be submitted; the daemon checks it, if one is running."""
    as_json = "json" in values
    try:
        path = "/jobs?dry-run" + ("&start" if "test-only" in values else "")
        return http.show_answer("POST", path, body, as_json=as_json)
    except (ConnectionError, Unreachable):
        if "test-only" in values:
            raise
        from gflow.text.submissions import dry_run_page
        from gflow.wire.answers.jobs import dry_run_view
        from gflow.wire.encoding import encode
        from gflow.wire.requests import Reader, SubmitRequest, decode

        wanted: SubmitRequest = decode(body, SubmitRequest)
        specs = [found.spec for job in wanted.jobs for found in Reader(lambda text: "-").read_all(job)]
        view = encode(dry_run_view(specs))
        hot_path.write(1, http.json_line(view) if as_json else dry_run_page(specs).encode())
        sys.stderr.write("gbatch: the daemon is not running, so this was not checked against the machine\n")
        return 0
