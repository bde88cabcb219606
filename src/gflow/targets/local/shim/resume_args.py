"""Add --resume-args, with the newest checkpoint filled in, to the command of a further attempt.

Runs as the job's own process, in its folder and as its owner, and then executes the command:

    python -I -S resume_args.py '--ckpt_path {latest}' COMMAND…

`{latest}` is looked for in the folder `checkpoints`, `{latest:DIR}` in another, and
`{latest:runs/*/last.ckpt}` is the newest file or folder of such a name. Without any checkpoint the command
runs as it was submitted.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import shlex
import sys

USUAL = "checkpoints"
_PLACE = re.compile(r"\{latest(?::([^{}]+))?\}")
# Names that mean the newest checkpoint; otherwise the newest file that matches LIKE.
NAMED = ("latest", "last", "last.ckpt", "last.pt", "latest.pt", "latest.ckpt")
LIKE = ("*.ckpt", "*.pt", "*.pth", "*.safetensors", "*.bin", "checkpoint-*", "step-*", "epoch*")
UNFINISHED = (".tmp", ".part", ".partial", "-tmp", ".incomplete")


def latest(place: str) -> str:
    """The newest checkpoint in a folder or of a pattern; empty if there is none."""
    if glob.has_magic(place):
        return _newest(glob.glob(place, recursive=True))
    if not os.path.isdir(place):
        return place if os.path.exists(place) else ""
    for name in NAMED:
        path = os.path.join(place, name)
        if os.path.exists(path):
            # Resolve the link now: it may change while the checkpoint is read.
            return os.path.join(place, os.readlink(path)) if os.path.islink(path) else path
    names = [name for name in os.listdir(place) if any(fnmatch.fnmatch(name, like) for like in LIKE)]
    return _newest([os.path.join(place, name) for name in names])


def _newest(paths: list[str]) -> str:
    complete = [path for path in paths if not path.endswith(UNFINISHED) and os.path.exists(path)]
    return max(complete, key=lambda path: (os.path.getmtime(path), path), default="")


def fill_template(template: str) -> list[str] | None:
    """The arguments to add; None if the template needs a checkpoint and there is none."""
    words = []
    for word in shlex.split(template):
        for place in set(_PLACE.findall(word)):
            found = latest(place or USUAL)
            if not found:
                return None
            word = word.replace(f"{{latest:{place}}}" if place else "{latest}", found)
        words.append(word)
    return words


def add_words(command: list[str], words: list[str]) -> list[str]:
    """Append arguments to a command; for `bash -c LINE`, to the end of the line."""
    if command[:2] == ["bash", "-c"] and len(command) == 3:
        return [*command[:2], f"{command[2]} {shlex.join(words)}"]
    return [*command, *words]


def main() -> None:
    template, *command = sys.argv[1:]
    words = fill_template(template)
    if words is None:
        sys.stderr.write("gflow: there is no checkpoint to resume from; starting from the beginning\n")
    else:
        sys.stderr.write(f"gflow: resuming with {shlex.join(words)}\n")
        command = add_words(command, words)
    sys.stderr.flush()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"gflow: {command[0]}: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
