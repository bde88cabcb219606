"""Sweep templates: fill the parameters of a sweep into command and name, as in `--lr {lr}`.

Only `{name}` with an identifier is a placeholder: `{}`, `{"a": 1}` and `{0}` stay as they are, and so does
everything in jobs without parameters. `{{name}}` is a literal `{name}`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

import msgspec

from gflow.core.model import Spec
from gflow.errors import Hint, UsageError

# Maximum length of a job name, in characters.
NAME_LENGTH = 200
_PLACEHOLDER = re.compile(r"\{(\{[A-Za-z_][A-Za-z0-9_]*\})\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace every `{name}` in `text`; raise UsageError for a name that is not among `values`."""

    def replace(found: re.Match[str]) -> str:
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

    return _PLACEHOLDER.sub(replace, text)


def fill_command(command: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Fill the words of a command. In a shell line (`bash -c`) each value is quoted to stay one word."""
    words = tuple(command)
    if words[:2] == ("bash", "-c") and len(words) == 3:
        quoted = {name: shlex.quote(value) for name, value in values.items()}
        return ("bash", "-c", fill(words[2], quoted))
    return tuple(fill(word, values) for word in words)


def fill_spec(spec: Spec, values: Mapping[str, str]) -> Spec:
    """Fill these values into a spec whose command and name are templates; keep the templates."""
    command, name = fill_command(spec.command, values), fill(spec.name, values)
    if len(name) > NAME_LENGTH or not name.isprintable() or (spec.name and not name.strip()):
        hint = Hint("name", "see the field name")
        raise UsageError(f"{name!a:.60} cannot be the name of a job", hint=hint)
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
