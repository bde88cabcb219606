"""gqueue: list jobs."""

from __future__ import annotations

import sys

from gflow.cli.common.listing import add_me, since_of
from gflow.client import hot_path, http
from gflow.options.commands.gqueue_options import OPTIONS
from gflow.options.commands.gqueue_query import clusters_of, gqueue_query, read_gqueue


def run(words: list[str]) -> int:
    values, output = read_gqueue(words)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gqueue [options] [JOB…]", _about(), OPTIONS, EXAMPLES))
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


def _about() -> str:
    from gflow.job_states import JobState

    states = {state: f"{state.row.short} {state.value}" for state in JobState}
    states[JobState.RUNNING] += ", CG being stopped"
    return ABOUT.format(states=", ".join(states.values()))


ABOUT = """List running and waiting jobs, with the reason why each one waits.

On a terminal, a last line counts the jobs and GPUs, long reasons wrap, and jobs that report their
progress show PROGRESS, ETA and LOSS. There, a sweep or an array with several listed jobs is one line
with its counts by state, a progress bar and the expected time to its end, unless jobs (ids, -N, -s, -n),
an order or columns are chosen; --expand and --collapse say which.

--target NAME of a cluster also lists your Slurm jobs there that this daemon did not submit, unless jobs
or columns are chosen. gflow does not change them.

columns: JOBID NAME ST STATE TIME TIMELIMIT NODES (requested GPUs) NODELIST(REASON) (its GPUs, or why
it waits or failed) REASON GPUS GPUIDS CPUS MEMORY USER PROJECT PRIORITY SUBMIT START (with ~ the
expected start of a waiting job) END EXIT ATTEMPT PROGRESS ETA (time to its end) LOSS RATE (samples
per second, as the job reports them) MAXRSS (peak memory) GPU% (mean use of its GPUs) GPUMEM (peak
memory of a GPU) GROUP PARAMS TARGET COMMAND WORKDIR (and any metric that jobs report)

states: {states}"""
EXAMPLES = """gqueue
gqueue -s Running,Queued -f 'JOBID,NAME,ST,NODES,NODELIST(REASON)'
gqueue -c --since today -f JOBID,NAME,STATE,EXIT,TIME,END
gqueue --me -N 'lr*'
gqueue --target slurm
gqueue -a -f JOBID,NAME,ST,TIME,MAXRSS,GPU%,GPUMEM
gqueue -u ann -r priority -n 10
gqueue -a -r loss -f JOBID,NAME,PROGRESS,LOSS,accuracy
gqueue g116 -f JOBID,ST,PARAMS,LOSS -r loss
gqueue --expand
gqueue --tree
gqueue --watch --interval 5
gqueue --all -o csv > jobs.csv"""
