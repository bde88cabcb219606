"""gjob: show and change jobs."""

from __future__ import annotations

import sys

from gflow.client import hot_path, http
from gflow.options.commands.gjob_options import ALIASES, options_of
from gflow.options.job_options import COMMON, JSON, refuse
from gflow.options.parse import parse

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gflow.options.job_options import Option

    Values = dict[str, Any]

ABOUT = """Show and change jobs. A job is given by its id (42), as a task of an array (42_3, 42_[1-5]), as @
for your latest job, or @~1 for the one before it; several as 1,3,5-7, or as g116, the jobs of group 116
(a sweep). `gjob COMMAND --help` lists options.

commands:
"""
EXAMPLES = """gjob show 42
gjob show g116                    # a sweep: counts, time left, best and worst
gjob show g116 --metric accuracy --highest
gjob log -f @
gjob hold 42,43
gjob release --at 20:00 42
gjob update 42 --gpus 2 --priority 50
gjob update 42 --time +2h               # also while it runs
gjob update 42 --clear-time --clear-deps
gjob redo @ --memory 64G
gjob redo 42 --cascade            # also the jobs cancelled with it
gjob redo g116 --failed           # only what failed of a sweep
gjob log g116 --failed            # the last lines of each failed job
gjob results g116 -r loss         # parameters and metrics, best first
gjob results g116 --csv > runs.csv
gjob wait 40-45
gjob wait g116                    # all jobs of a sweep
gjob history @
gjob why 42
gjob exec 42 -- nvidia-smi
gjob exec @ bash
gjob fetch 42                     # what the job wrote on the cluster
gjob fetch 42 'runs/**' --to results
gjob usage @ --csv
gjob usage 42 --json
gjob profile 42 --steps 10 --memory
gjob profile 42 --output trace.json.gz"""

# Commands with times as options, which are read in the configured time zone.
READ_TIMES = ("release", "update", "redo")


class Command:
    """One command of gjob: its description and handler. Its options: `options_of`."""

    def __init__(
        self,
        about: str,
        handler: Callable[[Values, list[str]], int],
        *,
        needs_jobs: bool = True,
        until_word: bool = False,
    ) -> None:
        self.about = about
        self.handler = handler
        self.needs_jobs = needs_jobs
        # Whether the words after the job are the command line of another program.
        self.until_word = until_word


def run(words: list[str]) -> int:
    name = next((word for word in words if not word.startswith("-")), "")
    if not name:
        sys.stdout.write(_page())
        return 0 if words else 2
    full_name = ALIASES.get(name, name)
    command = COMMANDS.get(full_name)
    if command is None:
        from gflow.cli.registry import ELSEWHERE
        from gflow.errors import did_you_mean

        close = did_you_mean(name, COMMANDS, "commands: " + ", ".join(COMMANDS))
        hint = f"did you mean {ELSEWHERE[name]}?" if name in ELSEWHERE else close
        refuse(f"gjob has no command {name!a:.60}", hint)
    rest = list(words)
    rest.remove(name)
    options = (*options_of(full_name), JSON, *COMMON)
    if full_name in READ_TIMES:
        from gflow.config import timezone

        timezone.use_configured()
    values, jobs = parse(rest, options, until_word=command.until_word)
    if "help" in values:
        sys.stdout.write(_command_page(full_name, command, options))
        return 0
    if not jobs and command.needs_jobs:
        refuse("no job is named", "give an id, or @ for your latest job")
    return command.handler(values, jobs)


def _page() -> str:
    from gflow.options import help

    lines = "\n".join(f"  {name:<15} {command.about}" for name, command in COMMANDS.items())
    return help.render("gjob COMMAND JOB [options]", ABOUT + lines, (JSON, *COMMON), EXAMPLES)


def _command_page(name: str, command: Command, options: tuple[Option, ...]) -> str:
    """The help of one command. The --clear-NAME options are described once instead of listed."""
    from gflow.options import help
    from gflow.options.update import CLEARING

    shown = tuple(option for option in options if option not in CLEARING)
    about = command.about[0].upper() + command.about[1:] + "."
    if len(shown) < len(options):
        about += "\n\n--clear-NAME resets an option to its default: --clear-time, --clear-memory, …"
    examples = "\n".join(line for line in EXAMPLES.splitlines() if line.startswith(f"gjob {name} "))
    return help.render(f"gjob {name} JOB [options]", about, shown, examples)


def _one(jobs: list[str]) -> str:
    if len(jobs) != 1:
        refuse("give exactly one job")
    return jobs[0]


def _show(values: Values, jobs: list[str]) -> int:
    query = {"metric": values["metric"]} if "metric" in values else {}
    query |= {"highest": "1"} if "highest" in values else {}
    if "json" not in values:
        query |= hot_path.terminal()
    return http.show(http.job_path(",".join(jobs)), as_json="json" in values, **query)


def _log(values: Values, jobs: list[str]) -> int:
    import os

    from gflow.cli.common.logs import as_json, follow, print_end, print_lines

    if "first" in values and (clash := values.keys() & {"last", "follow"}):
        refuse(f"--first and --{min(clash)} do not go together")
    if "follow" in values and len(jobs) == 2 and jobs[0].isdecimal():
        refuse(
            "give exactly one job",
            f"-f follows the output here; its first {jobs[0]} lines: gjob log --first {jobs[0]} {jobs[1]}",
        )
    if {"follow", "json"} <= values.keys():
        refuse("--follow prints text and cannot be combined with --json", "gjob wait 42; gjob log --json 42")
    if "failed" in values or _has_several(jobs):
        return _logs(values, jobs)
    place = _place_of(_one(jobs))
    is_harmless = os.isatty(1) and place["uid"] != os.geteuid()
    _become_owner(place["uid"])
    if "json" in values:
        return as_json(place, values.get("first"), values.get("last"))
    if "follow" in values:
        job = str(place["job_id"])
        follow(job, place["path"], values.get("last"), is_harmless=is_harmless)
        if os.isatty(2):
            print_end(http.get(http.job_path(job, "/log")))
        return 0
    if place["waits"] and not os.path.exists(place["path"]):
        sys.stderr.write(f"gjob: job {place['job_id']} has not started: {place['waits']}\n")
        return 0
    print_lines(place["path"], values.get("first"), values.get("last"), is_harmless=is_harmless)
    if "first" not in values:
        print_end(place)
    return 0


def _place_of(job: str) -> dict[str, Any]:
    """Where the log of a job is. Prints a note if the file may lack the last part of the output."""
    place: dict[str, Any] = http.get(http.job_path(job, "/log"))
    if place.get("note"):
        sys.stderr.write(f"gjob: {place['note']}\n")
    return place


def _results(values: Values, jobs: list[str]) -> int:
    from gflow.options.commands.gjob_results_query import results_query

    output, query = results_query(values, jobs)
    query |= hot_path.terminal() if output == "table" else {}
    return http.show("/jobs", as_json=output == "json", **query)


def _logs(values: Values, jobs: list[str]) -> int:
    """Print the logs of several jobs, each below a header line."""
    import os

    from gflow.cli.common.logs import print_lines
    from gflow.errors import Refused, clean
    from gflow.job_states import FAILED_NAMES

    uid = os.geteuid()
    if clash := values.keys() & {"follow", "json"}:
        refuse(f"--{min(clash)} takes one job", "gjob log -f 42")
    shown = http.get(http.job_path(",".join(jobs)))["jobs"]
    if "failed" in values:
        shown = [job for job in shown if job["state"] in FAILED_NAMES]
    if not shown:
        raise Refused("none of these jobs ended as Failed or Timeout", hint="leave --failed out to see all")
    shown = [job for job in shown if job["tasks"] is None]
    if len({job["user"] for job in shown}) > 1:
        refuse("these jobs belong to several users", "name jobs of one user")
    places = (http.get(http.job_path(str(job["id"]), "/log")) for job in shown)
    if uid == 0:  # all requests are sent before root becomes the owner
        places = (place for place in list(places))
    last = values.get("last", None if "first" in values else 20)
    for job, place in zip(shown, places, strict=True):
        is_harmless = os.isatty(1) and place["uid"] != uid
        _become_owner(place["uid"])
        head = " ".join([f"==> {job['id']} {job['name']}", job["state"], job["reason"] or ""]).rstrip()
        hot_path.write(1, f"{clean(head)} <==\n".encode())
        print_lines(place["path"], values.get("first"), last, is_harmless=is_harmless)
    return 0


def _become_owner(uid: int) -> None:
    from gflow.cli.common.rights import become_owner

    become_owner(uid)


def _attach(values: Values, jobs: list[str]) -> int:
    from gflow.cli.common import terminal

    code = terminal.attach(_one(jobs)) if "json" not in values else None
    if code is not None:
        return code
    return _log(values | {"follow": True}, jobs)


def _exec(values: Values, words: list[str]) -> int:
    from gflow.cli.common import terminal

    return terminal.execute(values, words)


def _why(values: Values, jobs: list[str]) -> int:
    path, as_json = http.job_path(_one(jobs)), "json" in values
    if not as_json:
        # The page of an ended job needs no JSON, whose import takes longer than the answer.
        status, _, page = hot_path.request("GET", path + "/diagnosis", b"", "text/plain")
        if status < 400:
            hot_path.write(1, page)
            return 0
    from gflow.job_states import FINAL_NAMES, JobState

    job = http.get(path, tasks="0")["jobs"][0]
    if job["state"] in FINAL_NAMES:  # in text it ended a moment ago, or the daemon refuses
        if not as_json:
            return http.show(path + "/diagnosis", as_json=False)
        view = http.get(path + "/why") | http.get(path + "/diagnosis")
        hot_path.write(1, http.json_line(hot_path.dumps(view).encode()))
        return 0
    if job["state"] == JobState.RUNNING.value and job["tasks"] is None:
        return _judge_run(job, path + "/why", as_json=as_json)
    if as_json:
        return http.show(path + "/why", as_json=True)
    hot_path.write_folded(1, http.ask("GET", path + "/why", b"", "text/plain", {}))
    return 0


def _judge_run(job: dict[str, Any], path: str, *, as_json: bool) -> int:
    """Print whether a running job is slow, stuck or fine. The JSON also has the keys of the daemon."""
    from gflow.client.run_observation import judge_job, run_view
    from gflow.errors import clean
    from gflow.text.run_diagnosis import run_page

    answer = http.get(path) if as_json else {}
    found = judge_job(job, _become_owner)
    if as_json:
        hot_path.write(1, http.json_line(hot_path.dumps(answer | run_view(job, found)).encode()))
        return 0
    hot_path.write(1, "".join(f"{clean(line)}\n" for line in run_page(job, found).splitlines()).encode())
    return 0


def _history(values: Values, jobs: list[str]) -> int:
    return http.show(http.job_path(_one(jobs), "/history"), as_json="json" in values)


def _usage(values: Values, jobs: list[str]) -> int:
    path = http.job_path(_one(jobs), "/usage")
    return http.show(path + "?csv=1" if "csv" in values else path, as_json="json" in values)


def _profile(values: Values, jobs: list[str]) -> int:
    from gflow.cli.gjob_profile import profile

    return profile(values, _one(jobs), _become_owner)


def _fetch(values: Values, jobs: list[str]) -> int:
    from gflow.cli.gjob_fetch import fetch

    return fetch(values, jobs[0], jobs[1:], _become_owner)


def _wait(values: Values, jobs: list[str]) -> int:
    from gflow.client.wait import count_ends, wait_for_all

    names = (
        [str(job["id"]) for job in http.get(http.job_path(",".join(jobs)))["jobs"]]
        if _has_several(jobs)
        else jobs
    )
    on_count = _show_count if sys.stderr.isatty() else None
    try:
        final, code = wait_for_all(names, on_count, values.get("timeout"))
    except TimeoutError as error:
        raise _late(str(error), values["timeout"]) from None
    if "json" in values:
        hot_path.write(1, http.json_line(hot_path.dumps({"jobs": final, "total": len(final)}).encode()))
    elif on_count is not None and len(final) > 1:
        sys.stderr.write(f"{count_ends(final)} (gjob show {','.join(jobs)})\n")
    return code


def _late(message: str, seconds: int) -> Exception:
    """The error of a wait that --timeout ended. The jobs continue."""
    from gflow.errors import Refused
    from gflow.job_states import JobState

    error = Refused(f"{message}, after {seconds} s", hint="it continues: gjob why JOB, gjob log -f JOB")
    error.exit_code = JobState.TIMEOUT.row.exit_code or 1
    return error


def _show_count(done: int, total: int) -> None:
    """Show on the terminal how many of several jobs have ended; erased at the end."""
    if total > 1:
        sys.stderr.write("\r\x1b[K" if done == total else f"\r{done} of {total} jobs have ended\x1b[K")
        sys.stderr.flush()


def _has_several(jobs: list[str]) -> bool:
    return len(jobs) > 1 or any(mark in jobs[0] for mark in ",-[g")


def _close_sessions(values: Values, jobs: list[str]) -> int:
    if "json" in values:
        print('{"closed": 0}')
        return 0
    print("Nothing to close: jobs run without terminal sessions (gjob log -f JOB follows).")
    return 0


def _change(verb: str) -> Callable[[Values, list[str]], int]:
    """A handler that imports `gjob_modify` when it is called."""

    def handler(values: Values, jobs: list[str]) -> int:
        from gflow.cli import gjob_modify

        code: int = getattr(gjob_modify, verb)(values, jobs)
        return code

    return handler


COMMANDS = {
    "show": Command("show all details of jobs, or the figures of a group", _show),
    "log": Command("print the output of jobs", _log),
    "attach": Command("attach to its terminal (--pty) or follow its output to the end", _attach),
    "results": Command("show parameters, metrics and ends, a row for each job", _results),
    "exec": Command("run a command in a job, with its environment, GPUs and limits", _exec, until_word=True),
    "why": Command("show why it waits, is slow or stuck, or has failed", _why),
    "history": Command("show everything that happened to a job, and who did it", _history),
    "usage": Command("show how a job used its GPUs; on Slurm, what it uses now", _usage),
    "profile": Command("record the next steps of a running gflow.train run", _profile),
    "fetch": Command("fetch files that a job wrote on a cluster", _fetch),
    "hold": Command("prevent waiting jobs from starting", _change("hold")),
    "release": Command("release held jobs", _change("release")),
    "update": Command("change a job: any job option of gbatch", _change("update")),
    "redo": Command("submit jobs again as new jobs, optionally with other options", _change("redo")),
    "wait": Command("wait for jobs and exit with the highest exit code", _wait),
    "close-sessions": Command("does nothing: there are no sessions", _close_sessions, needs_jobs=False),
}
