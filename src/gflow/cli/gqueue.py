"""gqueue: list jobs."""

from __future__ import annotations

import sys

from gflow.cli.common.listing import add_me, since_of
from gflow.client import hot_path, http
from gflow.options.commands.gqueue_query import clusters_of, gqueue_query, read_gqueue


def run(words: list[str]) -> int:
    values, output = read_gqueue(words)
    if "help" in values:
        from gflow.options.commands.help_pages import help_page

        sys.stdout.write(help_page("gqueue"))
        return 0
    clusters = clusters_of(values, output)
    add_me(values)
    query = gqueue_query(values, output)
    if "since" in values:
        query["since"] = since_of(values["since"])
    if output == "table":
        query |= hot_path.terminal()
    if "watch" in values:
        from gflow.cli.common.watch import watch

        title, interval_s = "gqueue " + " ".join(words), values.get("interval", 2)
        return watch(lambda: _ask(query, output), interval_s, title, is_data=output != "table")
    sys.stdout.flush()
    content, code = _ask(query, output), 0
    if clusters:
        from gflow.cli.common.other_slurm_jobs import add_others

        content, code = add_others(content, clusters, is_json=output == "json")
    hot_path.write(1, content)
    if "width" in query:
        from gflow.client.private_daemon import other_jobs

        hot_path.write(1, other_jobs().encode())
    return code


def _ask(query: dict[str, str], output: str) -> bytes:
    accept = "application/json" if output == "json" else "text/plain"
    content = http.ask("GET", "/jobs", b"", accept, query)
    return http.json_line(content) if output == "json" else content
