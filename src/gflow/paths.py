"""Paths of files, directories and sockets, from HOME and the XDG variables. Shared by client and daemon.

`get` reads a variable (`os.environ.get`, or the client's cheaper reader). Several daemons can run side by
side with different variables.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing costs 15 ms to import, and this runs inside every gbatch
if TYPE_CHECKING:
    from collections.abc import Callable

    Getenv = Callable[[str], str | None]

# sun_path holds 108 bytes; longer paths are reached through an open directory.
SOCKET_PATH_MAX = 100


def data_dir(get: Getenv) -> str:
    return _xdg(get, "XDG_DATA_HOME", "/.local/share") + "/gflow"


def config_file(get: Getenv) -> str:
    return _xdg(get, "XDG_CONFIG_HOME", "/.config") + "/gflow/gflow.toml"


def system_socket(get: Getenv) -> str:
    """Socket of the system daemon. GFLOW_SYSTEM_ROOT is a path prefix for tests."""
    return (get("GFLOW_SYSTEM_ROOT") or "") + "/run/gflow/gflowd.sock"


def system_data(get: Getenv) -> str:
    return (get("GFLOW_SYSTEM_ROOT") or "") + "/var/lib/gflow"


def system_config(get: Getenv) -> str:
    return (get("GFLOW_SYSTEM_ROOT") or "") + "/etc/gflow/gflow.toml"


def machine_signs(get: Getenv) -> tuple[str, str, str]:
    """Paths of which at least one exists if the machine has a system daemon. Users may not see all."""
    return system_config(get), system_data(get), system_socket(get)


def own_socket(get: Getenv) -> str:
    """Socket of a user's own daemon."""
    runtime = get("XDG_RUNTIME_DIR")
    return (runtime + "/gflow" if runtime else data_dir(get)) + "/gflowd.sock"


def address_file(get: Getenv) -> str:
    """File with the path of the daemon's socket: XDG_RUNTIME_DIR differs in cron, sudo and jobs."""
    return data_dir(get) + "/address"


def log_dir(get: Getenv) -> str:
    return data_dir(get) + "/logs"


def _xdg(get: Getenv, variable: str, below_home: str) -> str:
    folder = get(variable)
    return folder if folder and folder.startswith("/") else (get("HOME") or "/") + below_home
