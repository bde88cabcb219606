"""Parameters of a sweep, put into the command: `--lr {lr}`.

Only `{name}` counts, with a name as a program would write it: `{}`, `{"a": 1}` and `{0}` are left
alone, and so is everything in jobs without parameters. `{{name}}` is a literal `{name}`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

import msgspec

from gflow.core.model import Spec
from gflow.errors import UsageError

# The longest name of a job.
NAME_LENGTH = 200
_PLACE = re.compile(r"\{(\{[A-Za-z_][A-Za-z0-9_]*\})\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")


def fill(text: str, values: Mapping[str, str]) -> str:
    """`text` with every `{name}` replaced; a name that is not among `values` is refused."""

    def value(found: re.Match[str]) -> str:
        literal, name = found.groups()
        if literal:
            return str(literal)
        if name not in values:
            known = ", ".join(values) or "none"
            raise UsageError(
                f"{{{name}}} is not a parameter",
                hint=f"parameters: {known}; write {{{{{name}}}}} for the text",
            )
        return values[name]

    return _PLACE.sub(value, text)


def fill_command(command: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """The words of a command, filled. In a line for the shell each value stays one word of it."""
    words = tuple(command)
    if words[:2] == ("bash", "-c") and len(words) == 3:
        quoted = {name: shlex.quote(value) for name, value in values.items()}
        return ("bash", "-c", fill(words[2], quoted))
    return tuple(fill(word, values) for word in words)


def fill_spec(spec: Spec, values: Mapping[str, str]) -> Spec:
    """A spec whose command and name are templates, with these values put into both."""
    command, name = fill_command(spec.command, values), fill(spec.name, values)
    if len(name) > NAME_LENGTH or not name.isprintable() or (spec.name and not name.strip()):
        raise UsageError(f"{name!a:.60} cannot be the name of a job", hint="see --name")
    return msgspec.structs.replace(
        spec,
        command=command,
        template=spec.command if command != spec.command else (),
        name=name,
        name_template=spec.name if name != spec.name else "",
        parameters=tuple(values.items()),
    )


def variable(name: str) -> str:
    """The environment variable that carries a parameter."""
    return "GFLOW_PARAM_" + name.upper()
