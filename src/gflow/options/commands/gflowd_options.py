"""Options of gflowd, besides the flags of its settings: `config.table.FLAGS`."""

from __future__ import annotations

from gflow.options.job_options import Option

# Of up, restart and run.
RUN = (
    Option(
        "config",
        "path",
        "also read this file; it takes precedence over gflow.toml",
        short="c",
        metavar="FILE",
    ),
    Option("paranoid", "flag", "check every invariant after every step (slow)"),
    Option(
        "system", "flag", "the system-wide daemon: runs the jobs of all users, each as its owner (root only)"
    ),
    Option("private", "flag", "your own daemon, even if a system-wide one exists; see GFLOW_SOCKET"),
)
INIT = (
    Option("yes", "flag", "ask nothing; use the defaults and the flags", short="y"),
    Option("force", "flag", "overwrite an existing gflow.toml"),
    Option("advanced", "flag", "ask for every setting"),
    Option("timezone", "text", "time zone in which times are read and shown", metavar="TZ"),
)
# `--config` as `gflowd init` understands it.
INIT_FILE = Option("config", "path", "write this file (default: gflow.toml)", short="c", metavar="FILE")
DOWN = (Option("kill-jobs", "flag", "also kill the running jobs; waiting jobs stay in the queue"),)
