"""What the configuration demands of a submission, and what it adds to it."""

from __future__ import annotations

from typing import Any

from gflow.config.reading import Config
from gflow.core.model import LOCAL
from gflow.errors import Refused


def defaults(config: Config) -> dict[str, Any]:
    """Options (by name) of jobs that do not say otherwise, as this daemon has them."""
    found = {"grace": config["jobs.grace_secs"]}
    if config["default_target"] != LOCAL:
        return found | {"on": config["default_target"]}
    return found | ({"overflow": config["default_overflow"]} if config["default_overflow"] else {})


def check_project(config: Config, project: str) -> None:
    """Refuse a job whose project is missing where one is wanted, or is none of those known here."""
    known = config["projects.known_projects"]
    hint = f"known projects: {', '.join(known)}" if known else "gbatch --project CODE …"
    if not project:
        if config["projects.require_project"]:
            raise Refused("every job needs a project here", hint=hint)
    elif known and project not in known:
        raise Refused(f"there is no project {project!a} here", hint=hint)
