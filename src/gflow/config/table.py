"""The table of all settings. File, environment, flags, `gflowd init` and the docs derive from it.

Each setting is declared here and nowhere else. `daemon.cpus` is `cpus` below `[daemon]` in gflow.toml,
`GFLOW_DAEMON__CPUS` in the environment, and `--cpus` for `gflowd up` where it has a flag.
"""

from __future__ import annotations

from gflow.options.job_options import Option

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from typing import Any

STRATEGIES = ("sequential", "random", "pack", "topology")


class Setting:
    """One setting: its key, type, default and description."""

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
        # The flag of gflowd, if any. `gflowd restart` keeps the values of flags that are `kept`.
        self.flag = flag
        self.metavar = metavar
        self.kept = kept
        # An additional environment variable, besides the one derived from the key.
        self.variable = variable
        self.choices = choices
        self.low = low
        # Example value for `gflowd init`, where the default is not a useful one.
        self.example = example
        # Whether `gflowd init` asks for it without --advanced.
        self.asked = asked
        # Whether its value names users or projects: with people.privacy only operators see it.
        self.names_others = names_others

    @property
    def variables(self) -> tuple[str, ...]:
        usual = "GFLOW_" + self.key.upper().replace(".", "__")
        return (usual, self.variable) if self.variable else (usual,)

    @property
    def table(self) -> str:
        """The TOML table of the setting; empty: top level."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    def display_value(self, value: Any) -> Any:
        """The value as shown to users. The content of tables is hidden, since it may hold passwords."""
        if self.kind == "named tables":
            return ", ".join(value) or "none"
        return f"{len(value)} configured" if self.kind == "tables" and value else value


SETTINGS = (
    Setting(
        "timezone",
        "zone",
        "",
        "time zone in which times are read and shown, such as Europe/Berlin (default: the machine's)",
        example="Europe/Berlin",
        asked=True,
    ),
    Setting("default_target", "text", "local", "where jobs without --on run: local, or the name of a target"),
    Setting(
        "default_overflow",
        "text",
        "",
        "target for jobs without --on and --overflow that cannot start on this machine soon enough",
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
        "interval in seconds at which the processes on the GPUs are checked",
        flag="gpu-poll-interval-secs",
        metavar="S",
        low=1,
    ),
    Setting(
        "daemon.cpus",
        "count",
        0,
        "CPU slots for jobs (default 0: the number of cores)",
        flag="cpus",
        metavar="N",
        kept=True,
    ),
    Setting(
        "daemon.simulate_gpus",
        "text",
        "",
        "simulate these GPUs: 4x80G, or 2x80G,2x24G",
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
        "also listen on this TCP port, for clients with a token (gctl token create); 0: no port",
        example=59000,
    ),
    Setting(
        "daemon.host",
        "text",
        "127.0.0.1",
        "address to which daemon.port is bound; an address that other machines can reach requires TLS",
    ),
    Setting(
        "daemon.tls_cert", "text", "", "TLS certificate file for daemon.port, including the certificate chain"
    ),
    Setting("daemon.tls_key", "text", "", "private key file of the TLS certificate"),
    Setting(
        "daemon.allowed_hosts",
        "names",
        (),
        "additional host names under which clients may reach daemon.port (default: only the machine's own)",
        example=("gpu1.lab.example",),
    ),
    Setting(
        "gpu.unmanaged_memory_mb",
        "count",
        0,
        "an unmanaged process that uses at most this much GPU memory, in MiB, does not block the GPU",
    ),
    Setting(
        "gpu.unmanaged_graphics_mb",
        "count",
        1024,
        "the same for processes that use the GPU only for graphics, such as a desktop",
    ),
    Setting(
        "gpu.visible_by",
        "choice",
        "index",
        "how CUDA_VISIBLE_DEVICES names GPUs: index or uuid (MIG slices always by uuid)",
        choices=("index", "uuid"),
    ),
    Setting(
        "gpu.patience_s",
        "count",
        10,
        "seconds without an answer from the NVIDIA driver after which no more jobs are placed on GPUs",
        low=1,
    ),
    Setting(
        "gpu.trust_pids",
        "flag",
        False,
        "trust the process ids that the driver reports even in a container, where they may be the host's",
    ),
    Setting(
        "gpu.mps",
        "flag",
        False,
        "run jobs that share GPUs under an MPS server, so that the driver enforces their memory limit",
    ),
    Setting(
        "gpu.isolate_devices",
        "flag",
        True,
        "system mode: a job can open the device files of its own GPUs only",
    ),
    Setting(
        "gpu.auto_margin_percent",
        "count",
        10,
        "margin in percent (at least 512 MiB) that --gpu-memory auto adds to the peak use of earlier runs",
    ),
    Setting(
        "gpu.idle_after_secs",
        "count",
        1800,
        "mark a job as IdleGPU when one of its GPUs has been unused for this many seconds; 0: never",
    ),
    Setting(
        "gpu.stop_idle_secs",
        "count",
        0,
        "stop a job when all of its GPUs have been unused for this many seconds (see --stop-if-idle); "
        "0: never",
    ),
    Setting(
        "gpu.drain_xids",
        "numbers",
        (),
        "further Xid codes that drain a GPU until gctl resume --gpu, besides those that mean a broken card",
        example=(13, 31),
    ),
    Setting("gpu.ignore_xids", "numbers", (), "Xid codes that never drain a GPU", example=(74,)),
    Setting(
        "gpu.drain_ecc_errors",
        "count",
        1,
        "drain a GPU until gctl resume --gpu after this many new uncorrectable memory errors (ECC); 0: never",
    ),
    Setting(
        "gpu.drain_temperature",
        "count",
        0,
        "drain a GPU at this temperature in °C until it is 5 °C cooler; 0: the GPU's own slowdown threshold",
    ),
    Setting(
        "gpu.drain_slowed",
        "flag",
        True,
        "drain a GPU while heat or its power supply slows it down (for gpu.drain_after_secs or longer)",
    ),
    Setting(
        "gpu.drain_pcie_percent",
        "count",
        25,
        "drain a GPU while its PCIe link width is at or below this percentage of the maximum; 0: never",
    ),
    Setting(
        "gpu.drain_after_secs",
        "count",
        60,
        "seconds for which a GPU must be slowed down, or short of PCIe lanes, before it is drained",
    ),
    Setting("jobs.grace_secs", "count", 30, "seconds between TERM and KILL for jobs without --grace"),
    Setting(
        "jobs.max_processes",
        "share",
        "15%",
        "limit on the processes and threads of a job, enforced where control groups are available: a "
        "number, or a percentage of the kernel's limit; 0: no limit",
        example=4096,
    ),
    Setting(
        "jobs.default_memory",
        "share",
        "90%",
        "host memory of a job without --memory: MiB, or a percentage of this machine's; 0: no limit",
        example=65536,
    ),
    Setting(
        "jobs.default_memory_rule",
        "choice",
        "auto",
        "what jobs.default_memory does: on (the job ends there), warn (a line in its log), off, or auto: on "
        "in system mode, else off",
        choices=("auto", "on", "warn", "off"),
    ),
    Setting(
        "jobs.cpu_limit",
        "choice",
        "weight",
        "what --cpus does to a job that could use more: weight (its share while others need the CPUs), or "
        "quota (never more CPU time than that)",
        choices=("weight", "quota"),
    ),
    Setting(
        "jobs.oom_score",
        "count",
        200,
        "raises the out-of-memory score of jobs, so that the kernel kills them before other processes; at "
        "most 1000",
    ),
    Setting(
        "jobs.private_tmp",
        "flag",
        False,
        "system mode: each job has a /tmp and /dev/shm of its own, which are deleted with it",
    ),
    Setting(
        "jobs.unkillable_secs",
        "count",
        60,
        "seconds after KILL until a job that is still alive is shown as Unkillable and logged; 0: never",
    ),
    Setting(
        "containers.runtime",
        "text",
        "auto",
        "program for --container on this machine: a name or path; auto: apptainer or singularity",
        example="/opt/apptainer/bin/apptainer",
    ),
    Setting(
        "containers.options",
        "names",
        (),
        "options of `apptainer exec` for --container on this machine",
        example=("--bind", "/scratch"),
    ),
    Setting(
        "spot.cloud",
        "text",
        "auto",
        "cloud whose spot termination notices are watched: auto (detected), off, aws, gcp or azure, "
        "optionally with another address of its metadata service (aws=http://127.0.0.1:8000)",
        example="aws",
    ),
    Setting(
        "spot.every_secs", "count", 5, "polling interval for spot termination notices, in seconds", low=1
    ),
    Setting(
        "logs.cap_mib",
        "count",
        1024,
        "rotate a job's log at this size in MiB, keeping one older part; 0: never",
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
        "with gflowd up --system, who may use a project: users, and Unix groups with @ (default: all users)",
        example={"vision": ("ann", "@vision")},
        names_others=True,
    ),
    Setting(
        "people.operators",
        "text",
        "gflow-admin",
        "with gflowd up --system, the group whose members are operators: they may change all jobs and "
        "the daemon",
    ),
    Setting(
        "people.min_uid",
        "count",
        1000,
        "with gflowd up --system, the lowest uid that may run jobs: 1000 refuses accounts of the system; "
        "root never may",
    ),
    Setting(
        "people.privacy",
        "choice",
        "open",
        "with gflowd up --system, what users see of others' jobs: open (name, user, state, resources) "
        "or private (nothing)",
        choices=("open", "private"),
    ),
    Setting(
        "people.max_jobs",
        "count",
        100_000,
        "with gflowd up --system, active jobs allowed per user, an array counted once; 0: no limit",
    ),
    Setting(
        "people.max_running",
        "count",
        1000,
        "with gflowd up --system, running jobs allowed per user, unless a quota says otherwise; 0: no limit",
    ),
    Setting(
        "people.max_priority",
        "count",
        10,
        "with gflowd up --system, the highest priority that users may request; operators and root may "
        "request any",
        low=10,
    ),
    Setting(
        "people.max_grace",
        "count",
        600,
        "with gflowd up --system, the longest --grace in seconds; operators and root may request any",
    ),
    Setting(
        "people.max_kept_mib",
        "count",
        1024,
        "with gflowd up --system, MiB stored per user for environments, scripts (equal ones counted "
        "once) and long commands",
        low=1,
    ),
    Setting(
        "people.max_connections",
        "count",
        512,
        "with gflowd up --system, requests that a user may have open at once",
        low=8,
    ),
    Setting(
        "policy.order",
        "choice",
        "shortest",
        "order of jobs within a priority: shortest (shortest expected runtime first) or arrival (first "
        "come, first served)",
        choices=("shortest", "arrival"),
    ),
    Setting(
        "policy.fair_share",
        "flag",
        True,
        "order users within a priority by past GPU time: the more a user has used, the later their jobs "
        "start",
    ),
    Setting("policy.half_life_days", "count", 7, "half-life of past GPU time in fair share, in days", low=1),
    Setting(
        "policy.protect",
        "flag",
        True,
        "give a start reservation to a job that has waited too long (see policy.patience)",
    ),
    Setting(
        "policy.patience",
        "count",
        8,
        "how many times its own expected runtime a job for the whole machine waits before it gets a "
        "start reservation; smaller jobs wait less; 0: the first job of the queue always has one",
    ),
    Setting(
        "quota.default_user",
        "limits",
        {},
        "default limits for each user: max_running_jobs, max_running_gpus, max_queued_jobs",
        example={"max_running_gpus": 4, "max_queued_jobs": 1000},
    ),
    Setting(
        "quota.default_project",
        "limits",
        {},
        "default limits for each project",
        example={"max_running_gpus": 8},
    ),
    Setting(
        "quota.users",
        "quotas",
        {},
        "limits by name for users, instead of the default; gctl quota set overrides them at run time",
        example={"ann": {"max_running_gpus": 8}},
        names_others=True,
    ),
    Setting(
        "quota.projects",
        "quotas",
        {},
        "limits by name for projects, instead of the default",
        example={"vision": {"max_running_jobs": 20}},
        names_others=True,
    ),
    Setting("notifications.enabled", "flag", False, "send webhooks and emails"),
    Setting(
        "notifications.max_concurrent_deliveries",
        "count",
        16,
        "maximum number of notifications that are delivered at the same time",
        low=1,
    ),
    Setting(
        "notifications.webhooks",
        "tables",
        (),
        "webhooks: tables with url, events, filter_users, headers, secret (docs/notifications.md)",
    ),
    Setting(
        "notifications.emails",
        "tables",
        (),
        "email recipients: tables with smtp_url, from, to, events, filter_users (docs/notifications.md)",
    ),
    Setting(
        "notifications.allowed_domains",
        "names",
        (),
        "the only domains to which jobs may send email (--notify-email; default: any)",
        example=("lab.example",),
    ),
    Setting(
        "notifications.max_mails_per_hour",
        "count",
        200,
        "with gflowd up --system, emails per hour that the jobs of one user may send; 0: no limit",
    ),
    Setting("retention.jobs_days", "count", 365, "days that finished jobs are kept", low=1),
    Setting(
        "retention.audit_days", "count", 365, "days that the audit log of jobs (gjob history) is kept", low=1
    ),
    Setting(
        "retention.texts_days",
        "count",
        30,
        "days that environments and scripts are kept after the last job that used them",
        low=1,
    ),
    Setting("retention.samples_days", "count", 7, "days that GPU usage samples are kept", low=1),
    Setting("retention.logs_days", "count", 365, "days that job logs are kept", low=1),
    Setting(
        "retention.tokens_days",
        "count",
        7,
        "days for which a submission token is remembered, so that a repeated submission is recognized",
        low=1,
    ),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}

# Keys of configurations of the original gflow that have no effect here: reported, not refused.
IGNORED = {"executor.type": "jobs always run as separate processes and need no tmux"}
# Keys that are refused because this version does not implement them. A table's name covers its keys.
NOT_YET = {
    "daemon.fair_share": "fair share is on by default; policy.fair_share = false turns it off",
}

# The flags of `gflowd up`, `restart` and `run`.
FLAGS = tuple(
    Option(setting.flag, "text", setting.help, metavar=setting.metavar, choices=setting.choices)
    for setting in SETTINGS
    if setting.flag
)
