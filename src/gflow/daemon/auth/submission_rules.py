"""Rules of the configuration for submissions: limits for users, projects, default options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from gflow.config.load import Config
from gflow.core.model import LOCAL, Spec
from gflow.daemon.auth.users import is_listed
from gflow.daemon.notify.destinations import is_in_domain
from gflow.errors import Forbidden, Refused

# Fields of a spec that have limits.
BOUNDED = ("priority", "grace_s", "project", "notify_emails")
_bounded_values = attrgetter(*BOUNDED)


def defaults(config: Config) -> dict[str, Any]:
    """Default options of jobs (by name) from the configuration."""
    found = {"grace": config["jobs.grace_secs"]}
    if config["default_target"] != LOCAL:
        return found | {"on": config["default_target"]}
    return found | ({"overflow": config["default_overflow"]} if config["default_overflow"] else {})


class Rights(NamedTuple):
    """The limits of a caller. The only check for new jobs, redone jobs and updates."""

    config: Config
    uid: int
    # Whether the limits for users apply: in system mode, to all but operators and root.
    is_bound: bool

    def check_specs(self, specs: Iterable[Spec]) -> None:
        for values in set(map(_bounded_values, specs)):
            self.check(dict(zip(BOUNDED, values, strict=True)))

    def check(self, fields: Mapping[str, Any]) -> None:
        """Refuse field values that the caller may not ask for."""
        if "project" in fields:
            self._check_project(fields["project"])
        self._check_addresses(fields.get("notify_emails", ()))
        if self.is_bound:
            self._check_priority(fields.get("priority", 0))
            self._check_grace(fields.get("grace_s", 0))

    def capped(self, spec: Spec) -> Spec:
        """The spec with its priority lowered to the caller's limit: an operator may have raised it."""
        most = self.config["people.max_priority"]
        if not self.is_bound or spec.priority <= most:
            return spec
        return msgspec.structs.replace(spec, priority=most)

    def _check_priority(self, priority: int) -> None:
        most = self.config["people.max_priority"]
        if priority > most:
            raise Refused(
                f"priority {priority} is higher than the limit for users here: {most}",
                hint=f"--priority {most} or less; operators can raise it with gjob update",
            )

    def _check_grace(self, grace_s: int) -> None:
        most = max(self.config["people.max_grace"], self.config["jobs.grace_secs"])
        if grace_s > most:
            raise Refused(
                f"a grace of {grace_s} s is longer than the limit for users here: {most} s",
                hint=f"--grace {most} or less",
            )

    def _check_addresses(self, addresses: Iterable[str]) -> None:
        domains = self.config["notifications.allowed_domains"]
        for address in addresses:
            if not is_in_domain(address, domains):
                raise Refused(
                    f"mail to {address!a:.100} is not allowed here", hint=f"domains: {', '.join(domains)}"
                )

    def _check_project(self, project: str) -> None:
        """Check that a required project is given, that it is known, and that the caller is a member."""
        known = self.config["projects.known_projects"]
        if not project:
            if self.config["projects.require_project"]:
                raise Refused("every job needs a project here", hint=self._own_projects(known))
        elif known and not self._is_known(project, known):
            raise Refused(f"there is no project {project!a} here", hint=self._own_projects(known))
        elif not self._may_use(project):
            raise Forbidden(f"you are not a member of project {project!a}", hint="ask its administrator")

    def _own_projects(self, known: Iterable[str]) -> str:
        """A hint that lists only the projects that the caller may use."""
        names = ", ".join(filter(self._may_use, known))
        return f"known projects: {names}" if names else "gbatch --project CODE …"

    def _is_known(self, project: str, known: Iterable[str]) -> bool:
        """Whether the project is known. With privacy, one that the caller may not use counts as unknown."""
        is_private = self.config["people.privacy"] == "private"
        return project in known and (not is_private or self._may_use(project))

    def _may_use(self, project: str) -> bool:
        return not self.is_bound or project not in self.config["projects.members"] or self.is_member(project)

    def is_member(self, project: str) -> bool:
        """Whether the configuration lists the caller, or a group of the caller, as a member."""
        return is_listed(self.uid, self.config["projects.members"].get(project, ()))
