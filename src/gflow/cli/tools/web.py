"""gflow web: open the web page of the daemon, logged in by a link that works once."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from gflow.options.commands.web_options import OPTIONS
from gflow.options.parse import parse

ABOUT = """Open the web page of your daemon: GPUs, jobs, logs, and what you can do with them.

The link logs your browser in as you. It works once, within five minutes; the session lasts 7 days.
Over SSH, the command prints how to reach the page from your own machine."""
EXAMPLES = """gflow web                  # in a browser here, or instructions over SSH
gflow web --no-browser     # only print the link
gflow web --logout         # end your sessions in all browsers"""
# A browser that is started without one of these would have no window.
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
# A program that opens the browser has failed by then, or stays until the browser is closed.
STARTS_S = 2.0


def run(words: list[str]) -> int:
    values, rest = parse(words, OPTIONS)
    if "help" in values:
        from gflow.options import help

        sys.stdout.write(help.render("gflow web [options]", ABOUT, OPTIONS, EXAMPLES))
        return 0
    if rest:
        from gflow.errors import UsageError

        raise UsageError(f"gflow web takes no arguments, such as {rest[0]!a:.60}")
    from gflow.client import hot_path, http

    if "logout" in values:
        return http.show_answer("POST", "/web/logout", b"{}", as_json="json" in values)
    body = {"operator": "operator" in values}
    if "json" in values:
        return http.show_answer("POST", "/web/links", hot_path.dumps(body).encode(), as_json=True)
    link, ssh = http.post("/web/links", body), os.environ.get("SSH_CONNECTION", "")
    if "no-browser" not in values and not ssh and _open(link):
        print("The page opens in your browser. If it does not: gflow web --no-browser")
        return 0
    sys.stdout.write(_instructions(link, ssh=ssh))
    return 0


def _open(link: dict[str, Any]) -> bool:
    """Open the link in a browser; False if there is no screen or no browser.

    Other users of the machine can read the arguments of a process, so the browser gets the path of a private
    file that leads to the link.
    """
    if not any(os.environ.get(name) for name in DISPLAYS):
        return False
    path = _write_page(link["url"])
    if any(_starts(program, path) for program in ("xdg-open", "sensible-browser")):
        return True
    os.unlink(path)
    return False


def _starts(program: str, path: str) -> bool:
    """Whether the program opens the page. A browser that stays in the foreground keeps running."""
    quiet = subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            [program, path], stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
        )
        return process.wait(STARTS_S) == 0
    except FileNotFoundError:
        return False
    except subprocess.TimeoutExpired:
        return True


def _write_page(url: str) -> str:
    """Write a private page that leads to the URL, in place of the last one; its path."""
    from gflow import paths

    folder = paths.data_dir(os.environ.get)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, "web-login.html")
    if os.path.exists(path):
        os.unlink(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={url}"><title>gflow</title>\n')
    return path


def _instructions(link: dict[str, Any], *, ssh: str) -> str:
    """How to reach the page. `ssh`: SSH_CONNECTION; the browser is then on another machine."""
    lines = [f"Open this link in a browser within five minutes. It works once, for {link['user']}:", ""]
    lines += [f"  {link['url']}", ""]
    is_here = link["host"] in ("127.0.0.1", "::1")
    if ssh and is_here:
        port, server = link["port"], ssh.split()[2] if len(ssh.split()) > 2 else os.uname().nodename
        lines = [
            "You are logged in over SSH. On your own machine, run this and keep it running:",
            "",
            f"  ssh -N -L {_local_port(port)}:127.0.0.1:{port} {link['user']}@{server}",
            "",
            f"Then open this link there within five minutes. It works once, for {link['user']}:",
            "",
            f"  {link['url'].replace(f':{port}/', f':{_local_port(port)}/')}",
            "",
        ]
    return "\n".join(lines)


def _local_port(port: int) -> int:
    """A port that an ordinary user may listen on, for the other end of the tunnel."""
    return port if port >= 1024 else port + 20_000
