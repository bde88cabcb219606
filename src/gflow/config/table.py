"""THE table of settings. File, environment, flags, `gflowd init` and the docs derive from it.

A setting is declared once, here. `daemon.cpus` is `cpus` below `[daemon]` in gflow.toml,
`GFLOW_DAEMON__CPUS` in the environment, and `--cpus` for `gflowd up` where it has a flag.
"""

from __future__ import annotations

from gflow.options.table import Option

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from typing import Any

STRATEGIES = ("sequential", "random", "pack", "topology")


class Setting:
    """One setting: its name, what it takes, what it means."""

    def __init__(
        self,
        key: str,
        kind: str,
        default: Any,
        help: str,
        *,
        flag: str = "",
        metavar: str = "",
        kept: bool = False,
        variable: str = "",
        choices: tuple[str, ...] = (),
        low: int = 0,
        example: Any = None,
        asked: bool = False,
        names_others: bool = False,
    ) -> None:
        self.key = key
        self.kind = kind
        self.default = default
        self.help = help
        # Its flag of gflowd, if it has one; those that are `kept` hold through `gflowd restart`.
        self.flag = flag
        self.metavar = metavar
        self.kept = kept
        # A variable besides the one that follows from the key.
        self.variable = variable
        self.choices = choices
        self.low = low
        # How it may look, where the default says nothing.
        self.example = example
        # Whether `gflowd init` asks for it without --advanced.
        self.asked = asked
        # Whether its value names users or projects: with people.privacy it is shown to operators alone.
        self.names_others = names_others

    @property
    def variables(self) -> tuple[str, ...]:
        usual = "GFLOW_" + self.key.upper().replace(".", "__")
        return (usual, self.variable) if self.variable else (usual,)

    @property
    def table(self) -> str:
        """The TOML table it stands in; empty for the top."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    def shown(self, value: Any) -> Any:
        """The value as people may see it: tables hold passwords."""
        if self.kind == "named tables":
            return ", ".join(value) or "none"
        return f"{len(value)} configured" if self.kind == "tables" and value else value


SETTINGS = (
    Setting(
        "timezone",
        "zone",
        "",
        "zone in which times are read and shown, such as Europe/Berlin (default: the machine's)",
        example="Europe/Berlin",
        asked=True,
    ),
    Setting("default_target", "text", "local", "where jobs run that do not say --on: local, or a target"),
    Setting(
        "default_overflow",
        "text",
        "",
        "a target that gets jobs which cannot start here soon enough, unless they say --on or --overflow",
    ),
    Setting(
        "targets",
        "named tables",
        {},
        "clusters for --on: [targets.NAME] with type, account, partition, … (docs/slurm.md)",
    ),
    Setting(
        "shapes",
        "named tables",
        {},
        "shapes for --shape: [shapes.NAME] with nodes, gpus, cpus, memory, partition, … (docs/slurm.md)",
    ),
    Setting(
        "daemon.gpus",
        "gpus",
        None,
        "GPUs that new jobs may get: 0,2 or 0-3 (default: all); gctl set-gpus changes it while gflowd runs",
        flag="gpus",
        metavar="LIST",
        example=(0, 2),
        asked=True,
    ),
    Setting(
        "daemon.gpu_allocation_strategy",
        "choice",
        "sequential",
        "which free GPUs a job gets: sequential (lowest index), random, pack (the fullest that fit), or "
        "topology (near each other)",
        flag="gpu-allocation-strategy",
        metavar="HOW",
        choices=STRATEGIES,
        asked=True,
    ),
    Setting(
        "daemon.gpu_poll_interval_secs",
        "count",
        1,
        "seconds between two looks at who uses the GPUs",
        flag="gpu-poll-interval-secs",
        metavar="S",
        low=1,
    ),
    Setting(
        "daemon.cpus",
        "count",
        0,
        "CPU slots for jobs (default 0: the cores)",
        flag="cpus",
        metavar="N",
        kept=True,
    ),
    Setting(
        "daemon.simulate_gpus",
        "text",
        "",
        "pretend to have these GPUs: 4x80G, or 2x80G,2x24G",
        flag="simulate-gpus",
        metavar="WHAT",
        kept=True,
        variable="GFLOW_SIMULATE_GPUS",
        example="4x80G",
    ),
    Setting(
        "daemon.port",
        "count",
        0,
        "a TCP port to listen on as well, for those who have a token (gctl token create); 0: none",
        example=59000,
    ),
    Setting(
        "daemon.host",
        "text",
        "127.0.0.1",
        "the address of that port; one that is reached from other machines needs TLS",
    ),
    Setting("daemon.tls_cert", "text", "", "file of the port's TLS certificate, with those it rests on"),
    Setting("daemon.tls_key", "text", "", "file of the certificate's key"),
    Setting(
        "daemon.allowed_hosts",
        "names",
        (),
        "further names under which clients reach the port (default: the machine's own)",
        example=("gpu1.lab.example",),
    ),
    Setting(
        "gpu.unmanaged_memory_mb",
        "count",
        0,
        "somebody else's process that uses no more than this many MiB does not block its GPU",
    ),
    Setting(
        "gpu.unmanaged_graphics_mb",
        "count",
        1024,
        "the same for processes that only draw, such as a desktop",
    ),
    Setting(
        "gpu.visible_by",
        "choice",
        "index",
        "what CUDA_VISIBLE_DEVICES is made of: index or uuid (MIG slices always have a uuid)",
        choices=("index", "uuid"),
    ),
    Setting(
        "gpu.patience_s",
        "count",
        10,
        "seconds without an answer of the NVIDIA driver until no more jobs are placed on GPUs",
        low=1,
    ),
    Setting(
        "gpu.trust_pids",
        "flag",
        False,
        "believe the driver's process numbers also in a container, where they may be the host's",
    ),
    Setting(
        "gpu.mps",
        "flag",
        False,
        "run jobs that share GPUs under an MPS server, which holds their memory limit in the driver",
    ),
    Setting(
        "gpu.auto_margin_percent",
        "count",
        10,
        "percent (512 MiB at least) that --gpu-memory auto adds to the most that earlier runs used",
    ),
    Setting(
        "gpu.idle_after_secs",
        "count",
        1800,
        "a job that does not use a GPU of its own for so many seconds shows as IdleGPU; 0: never",
    ),
    Setting(
        "gpu.stop_idle_secs",
        "count",
        0,
        "a job that uses none of its GPUs for so many seconds is stopped (see --stop-if-idle); 0: never",
    ),
    Setting(
        "gpu.drain_xids",
        "numbers",
        (),
        "error numbers (Xid) of the driver after which a GPU gets no new jobs until gctl resume, besides "
        "those that mean a broken card",
        example=(13, 31),
    ),
    Setting("gpu.ignore_xids", "numbers", (), "error numbers (Xid) after which it does", example=(74,)),
    Setting(
        "gpu.drain_ecc_errors",
        "count",
        1,
        "so many new uncorrectable memory errors (ECC) keep a GPU out until gctl resume; 0: they do not",
    ),
    Setting(
        "gpu.drain_temperature",
        "count",
        0,
        "a GPU of so many °C gets no new jobs until it is 5 °C cooler; 0: its own limit for slowing down",
    ),
    Setting(
        "gpu.drain_slowed",
        "flag",
        True,
        "a GPU that heat or its power supply slows down for gpu.drain_after_secs gets no new jobs meanwhile",
    ),
    Setting(
        "gpu.drain_pcie_percent",
        "count",
        25,
        "a GPU with so many percent of its PCIe lanes or fewer gets no new jobs meanwhile; 0: it does",
    ),
    Setting(
        "gpu.drain_after_secs",
        "count",
        60,
        "seconds that a GPU must be slowed down, or short of lanes, until it counts",
    ),
    Setting(
        "jobs.grace_secs", "count", 30, "seconds between TERM and KILL for jobs that do not say (--grace)"
    ),
    Setting(
        "jobs.max_processes",
        "share",
        "15%",
        "processes and threads that a job may have at once, where control groups hold it: a number, or a "
        "share of what the kernel allows; 0: any number",
        example=4096,
    ),
    Setting(
        "jobs.unkillable_secs",
        "count",
        60,
        "seconds after KILL at which a job that still lives is shown as Unkillable and logged; 0: never",
    ),
    Setting(
        "spot.cloud",
        "text",
        "auto",
        "who may take this machine away: auto (by what machine it is), off, aws, gcp or azure, "
        "with an address if it is another (aws=http://127.0.0.1:8000)",
        example="aws",
    ),
    Setting("spot.every_secs", "count", 5, "seconds between two questions whether it is taken away", low=1),
    Setting(
        "logs.cap_mib",
        "count",
        1024,
        "a job's log is cut, and its older part kept beside it, at this many MiB; 0: never",
    ),
    Setting(
        "projects.known_projects",
        "names",
        (),
        "the only projects that jobs may belong to (default: any)",
        example=("vision", "speech"),
        asked=True,
        names_others=True,
    ),
    Setting("projects.require_project", "flag", False, "refuse jobs without --project", asked=True),
    Setting(
        "projects.members",
        "members",
        {},
        "who may use a project of the machine's daemon: users, and Unix groups with @ (default: everybody)",
        example={"vision": ("ann", "@vision")},
        names_others=True,
    ),
    Setting(
        "people.operators",
        "text",
        "gflow-admin",
        "the group whose members govern the machine's daemon and everybody's jobs (gflowd up --system)",
    ),
    Setting(
        "people.privacy",
        "choice",
        "open",
        "what people see of others' jobs there: open (name, user, state, resources) or private (nothing)",
        choices=("open", "private"),
    ),
    Setting(
        "people.max_jobs",
        "count",
        100_000,
        "active jobs that one person may have there, an array counted once; 0: any number",
    ),
    Setting(
        "people.max_running",
        "count",
        1000,
        "jobs of one person that may run there at once, unless a quota says otherwise; 0: any number",
    ),
    Setting(
        "people.max_priority",
        "count",
        10,
        "the highest priority that people may ask for there; operators and root may ask for any",
        low=10,
    ),
    Setting(
        "people.max_grace",
        "count",
        600,
        "the longest --grace there, in seconds; operators and root may ask for any",
    ),
    Setting(
        "people.max_kept_mib",
        "count",
        1024,
        "MiB of environments, scripts (equal ones counted once) and long commands of one person's jobs that"
        " are kept there",
        low=1,
    ),
    Setting(
        "people.max_connections",
        "count",
        512,
        "requests that one person may have open there at once",
        low=8,
    ),
    Setting(
        "policy.order",
        "choice",
        "shortest",
        "who starts first within a priority: shortest (expected to end soonest) or arrival",
        choices=("shortest", "arrival"),
    ),
    Setting("policy.fair_share", "flag", True, "people who had many GPU hours come after people who had few"),
    Setting("policy.half_life_days", "count", 7, "days after which GPU hours count half", low=1),
    Setting(
        "policy.protect",
        "flag",
        True,
        "promise a start to a job that has waited too long (see policy.patience)",
    ),
    Setting(
        "policy.patience",
        "count",
        8,
        "for how many times its own length a job that wants the whole machine waits before it is promised its"
        " start; narrower ones wait for less; 0: the first in line is always promised it",
    ),
    Setting(
        "quota.default_user",
        "limits",
        {},
        "what each person may have at once: max_running_jobs, max_running_gpus, max_queued_jobs",
        example={"max_running_gpus": 4, "max_queued_jobs": 1000},
    ),
    Setting(
        "quota.default_project", "limits", {}, "the same for each project", example={"max_running_gpus": 8}
    ),
    Setting(
        "quota.users",
        "quotas",
        {},
        "the same by name, over the default; gctl quota set says it while gflowd runs, over this file",
        example={"ann": {"max_running_gpus": 8}},
        names_others=True,
    ),
    Setting(
        "quota.projects",
        "quotas",
        {},
        "the same for projects",
        example={"vision": {"max_running_jobs": 20}},
        names_others=True,
    ),
    Setting("notifications.enabled", "flag", False, "whether webhooks and mails are sent"),
    Setting(
        "notifications.max_concurrent_deliveries", "count", 16, "how many are on their way at once", low=1
    ),
    Setting(
        "notifications.webhooks",
        "tables",
        (),
        "who is told by POST: tables with url, events, filter_users, headers, secret (docs/notifications.md)",
    ),
    Setting(
        "notifications.emails",
        "tables",
        (),
        "who is told by mail: tables with smtp_url, from, to, events, filter_users (docs/notifications.md)",
    ),
    Setting(
        "notifications.allowed_domains",
        "names",
        (),
        "the only domains to which jobs may have mail sent (--notify-email; default: any)",
        example=("lab.example",),
    ),
    Setting(
        "notifications.max_mails_per_hour",
        "count",
        200,
        "mails an hour that one person's jobs may ask for (gflowd up --system); 0: any number",
    ),
    Setting("retention.jobs_days", "count", 365, "days that finished jobs are kept", low=1),
    Setting("retention.audit_days", "count", 365, "days that the story of jobs is kept", low=1),
    Setting(
        "retention.texts_days",
        "count",
        30,
        "days that environments and scripts stay after their last job",
        low=1,
    ),
    Setting("retention.samples_days", "count", 7, "days that readings of GPUs are kept", low=1),
    Setting("retention.logs_days", "count", 365, "days that job logs are kept", low=1),
    Setting(
        "retention.tokens_days", "count", 7, "days in which a repeated submission is known as the same", low=1
    ),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}

# Keys of other gflow configurations that change nothing here; told, not refused.
IGNORED = {"executor.type": "jobs are always run as processes of their own, and need no tmux"}
# Keys that would promise what this version does not do. A table's name stands for all below it.
NOT_YET = {
    "daemon.fair_share": "fair share is on, and policy.fair_share switches it off",
}

# The flags of `gflowd up`, `restart` and `run`.
FLAGS = tuple(
    Option(setting.flag, "text", setting.help, metavar=setting.metavar, choices=setting.choices)
    for setting in SETTINGS
    if setting.flag
)
