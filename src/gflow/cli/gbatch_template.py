"""`gbatch new NAME`: write a script template."""

from __future__ import annotations

import os

from gflow.errors import Refused, UsageError

TEMPLATE = """#!/bin/bash
# Options of gbatch; `##` disables a line. The command line takes precedence.
# GFLOW --name {name}
# GFLOW --gpus 1
## GFLOW --time 4:00:00
## GFLOW --memory 16G
## GFLOW --conda-env myenv
## GFLOW --depends-on 42
## GFLOW --max-retries 2 --retry-on oom,exit:75

echo "job $GFLOW_JOB_ID has GPUs [$CUDA_VISIBLE_DEVICES]"
"""


def new_script(words: list[str]) -> int:
    """Write NAME.sh, unless it exists."""
    if len(words) != 1 or not words[0].strip() or words[0].startswith("-"):
        raise UsageError("gbatch new takes one name", hint="gbatch new train writes train.sh")
    path = words[0].removesuffix(".sh") + ".sh"
    name = os.path.basename(path).removesuffix(".sh")
    if not name.isprintable() or not name:
        raise UsageError(f"{words[0]!a:.60} is not a valid script name")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755)
    except FileExistsError:
        raise Refused(f"{path} already exists", hint="choose another name") from None
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from None
    with open(fd, "w") as file:
        import shlex

        file.write(TEMPLATE.format(name=shlex.quote(name)))
    os.chmod(path, 0o755)
    print(f"Created {path}; submit it with: gbatch {shlex.quote(path)}")
    return 0
