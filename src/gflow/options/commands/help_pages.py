"""The pages of --help of the commands that the daemon reads for thin clients."""

from __future__ import annotations

from gflow.job_states import JobState
from gflow.options.commands.gcancel_options import OPTIONS as GCANCEL
from gflow.options.commands.ginfo_options import OPTIONS as GINFO
from gflow.options.commands.gqueue_options import OPTIONS as GQUEUE
from gflow.options.help import render
from gflow.options.job_options import HEADINGS

GBATCH_ABOUT = """Submit a job: a command, a script, or a script on standard input.

The first word that is not an option is a program or a script; the words after it are passed to
it unchanged. A single word with spaces or shell characters is a command line for bash. Scripts may
contain options in lines that start with `# GFLOW` (or `#SBATCH`); `gbatch new NAME` writes a
template."""
GBATCH_EXAMPLES = """gbatch --gpus 1 python train.py --lr 3e-4
gbatch --gpus 2 --time 4:00:00 --name big train.sh --epochs 90
gbatch 'cd runs && ./all.sh > out.txt'
ID=$(gbatch --parsable prepare.sh); gbatch --depends-on $ID python train.py
gbatch --depends-on @ evaluate.sh        # after the job submitted last
gbatch --array 1-100%4 ./task.sh         # $GFLOW_ARRAY_TASK_ID, four at once
gbatch --gpus 1 --param lr=0.1,0.01 --param seed=1:3 \\
       python train.py --lr {lr} --seed {seed}
gbatch --gpus 1 --gpu-memory auto --fit plan.json python train.py
gbatch --on slurm --nodes 2 --gpus 4 --time 1-0 train.sh
gbatch --shape big train.sh              # [shapes.big] in gflow.toml
gbatch --max-retries 3 --retry-on oom,exit:75 python train.py
gbatch --dry-run --config config.yaml python train.py"""

GQUEUE_ABOUT = """List running and waiting jobs, with the reason why each one waits.

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
GQUEUE_EXAMPLES = """gqueue
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

GINFO_ABOUT = """Show the GPUs of this machine: memory, use, and who has each one since when, until
when; which GPUs are reserved, drained or restricted.

On a terminal there is a line for each GPU. Programs that read the output get a
row for idle GPUs, one for each job and one for each reason why GPUs get no
jobs. `ginfo info` is the same as `ginfo --long`."""
GINFO_EXAMPLES = """ginfo
ginfo -l                # model, memory, load, temperature, jobs, idle since
ginfo -w
ginfo --target gilbreth # partitions of a cluster: nodes, free GPUs, time limits
ginfo --json"""

GCANCEL_ABOUT = """Cancel jobs. A running job gets TERM and, 30 seconds later, KILL, together with every
process that it started. Jobs that depend on it are cancelled too. Jobs are selected by id, by
filter options, or by both: then a job must match both."""
GCANCEL_EXAMPLES = """gcancel 42
gcancel 42,43 45-50
gcancel 42_3 42_[10-20]          # tasks of an array
gcancel g116                     # all jobs of a sweep
gcancel --now @                  # my latest job
gcancel --state Queued --name 'exp-*'
gcancel --dry-run --all
gcancel --signal USR1 42         # the job goes on, unless the signal ends it"""


def help_page(program: str) -> str:
    """The page of gbatch, gcancel, gqueue or ginfo."""
    if program == "gbatch":
        return render("gbatch [options] PROGRAM|SCRIPT [arguments]", GBATCH_ABOUT, HEADINGS, GBATCH_EXAMPLES)
    if program == "gcancel":
        return render("gcancel [options] JOB…", GCANCEL_ABOUT, GCANCEL, GCANCEL_EXAMPLES)
    if program == "ginfo":
        return render("ginfo [options]", GINFO_ABOUT, GINFO, GINFO_EXAMPLES)
    return render("gqueue [options] [JOB…]", about_gqueue(), GQUEUE, GQUEUE_EXAMPLES)


def about_gqueue() -> str:
    """What gqueue does, with the states of the table."""
    states = {state: f"{state.row.short} {state.value}" for state in JobState}
    states[JobState.RUNNING] += ", CG being stopped"
    return GQUEUE_ABOUT.format(states=", ".join(states.values()))
