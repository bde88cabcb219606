"""How much one person or one project may have at once.

A quota holds back starts, never what runs. Names are as the jobs carry them; who is not named has
what is said for everybody.
"""

from __future__ import annotations

import msgspec

USER, PROJECT = "user", "project"


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one of them may have at once; None: not said."""

    max_running_jobs: int | None = None
    max_running_gpus: int | None = None
    max_queued_jobs: int | None = None

    def over(self, other: Limits) -> Limits:
        """These, and where nothing is said the other's."""
        own = msgspec.structs.asdict(self)
        return Limits(**{name: getattr(other, name) if own[name] is None else own[name] for name in own})


NO_LIMITS = Limits()


class Quotas(msgspec.Struct, frozen=True, omit_defaults=True):
    """All quotas. The name "" stands for everybody who is not named."""

    users: dict[str, Limits] = {}
    projects: dict[str, Limits] = {}

    def __bool__(self) -> bool:
        return bool(self.users or self.projects)

    def named(self, scope: str) -> dict[str, Limits]:
        return self.users if scope == USER else self.projects

    def of(self, scope: str, name: str) -> Limits:
        """What holds for this person or project; a job without a project belongs to none."""
        named = self.named(scope)
        if not named or (scope == PROJECT and not name):
            return NO_LIMITS
        return named.get(name, NO_LIMITS).over(named.get("", NO_LIMITS))

    def over(self, other: Quotas) -> Quotas:
        """These, and where nothing is said the other's."""
        return Quotas(_over(self.users, other.users), _over(self.projects, other.projects))

    def changed(self, scope: str, name: str, limits: Limits | None) -> Quotas:
        """With other limits for one of them: those not said stay; None takes all away."""
        named = dict(self.named(scope))
        if limits is None:
            named.pop(name, None)
        else:
            named[name] = limits.over(named.get(name, NO_LIMITS))
        return Quotas(named, self.projects) if scope == USER else Quotas(self.users, named)


def _over(first: dict[str, Limits], second: dict[str, Limits]) -> dict[str, Limits]:
    names = {**second, **first}
    return {name: first.get(name, NO_LIMITS).over(second.get(name, NO_LIMITS)) for name in names}
