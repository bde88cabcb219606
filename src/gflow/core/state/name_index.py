"""Active jobs by user and name, for jobs that wait for earlier ones of their name."""

from __future__ import annotations

from gflow.core.ids import JobKey


class NameIndex:
    """The jobs of each user by name. A name that one job has takes no more than an entry of a dictionary."""

    def __init__(self) -> None:
        self._users: dict[int, dict[str, JobKey | set[JobKey]]] = {}

    def add(self, uid: int, name: str, key: JobKey) -> None:
        """Add a job. Jobs without a name are not kept."""
        if not name:
            return
        names = self._users.setdefault(uid, {})
        known = names.setdefault(name, key)
        if isinstance(known, set):
            known.add(key)
        elif known != key:
            names[name] = {known, key}

    def remove(self, uid: int, name: str, key: JobKey) -> None:
        """Remove a job, if it is here."""
        names = self._users.get(uid, {})
        known = names.get(name)
        if isinstance(known, set):
            known.discard(key)
        if known == key or known == set():
            del names[name]
            if not names:
                del self._users[uid]

    def find(self, uid: int, name: str) -> list[JobKey]:
        """The jobs of this user and name, in order."""
        known = self._users.get(uid, {}).get(name, set())
        return sorted(known) if isinstance(known, set) else [known]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NameIndex) and self._content == other._content

    __hash__ = None  # type: ignore[assignment]

    @property
    def _content(self) -> dict[tuple[int, str], list[JobKey]]:
        return {(uid, name): self.find(uid, name) for uid, names in self._users.items() for name in names}
