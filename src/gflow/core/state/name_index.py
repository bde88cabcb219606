"""An index of the active jobs by owner and name."""

from __future__ import annotations

from typing import Final

from gflow.core.ids import JobKey
from gflow.core.state.sorted_keys import SortedKeys

# The names of a user are in as many dictionaries, by hash. One dictionary of a million names holds the loop
# for 100 ms when it grows.
PARTS: Final = 256


class NameIndex:
    """The jobs of each user by name. A name that one job has takes no more than an entry of a dictionary."""

    def __init__(self) -> None:
        # By user and part of the hash. No part is empty.
        self._parts: dict[tuple[int, int], dict[str, JobKey | SortedKeys]] = {}

    def add(self, uid: int, name: str, key: JobKey) -> None:
        """Add a job. Jobs without a name are not kept."""
        if not name:
            return
        names = self._parts.setdefault((uid, hash(name) % PARTS), {})
        known = names.setdefault(name, key)
        if isinstance(known, SortedKeys):
            if key not in known:
                known.add(key)
        elif known != key:
            several = names[name] = SortedKeys()
            several.add(known)
            several.add(key)

    def remove(self, uid: int, name: str, key: JobKey) -> None:
        """Remove a job, if it is here."""
        part = (uid, hash(name) % PARTS)
        names = self._parts.get(part, {})
        known = names.get(name)
        if isinstance(known, SortedKeys):
            if key in known:
                known.remove(key)
            is_empty = not known
        else:
            is_empty = known == key
        if is_empty:
            del names[name]
            if not names:
                del self._parts[part]

    def find(self, uid: int, name: str) -> list[JobKey]:
        """The jobs of this user and name, in order."""
        known = self._parts.get((uid, hash(name) % PARTS), {}).get(name)
        if known is None:
            return []
        return list(known) if isinstance(known, SortedKeys) else [known]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NameIndex) and self._content == other._content

    __hash__ = None  # type: ignore[assignment]

    @property
    def _content(self) -> dict[tuple[int, str], list[JobKey]]:
        parts = self._parts.items()
        return {(uid, name): self.find(uid, name) for (uid, _), names in parts for name in names}
