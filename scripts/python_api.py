"""Signatures of the public Python API, read from the sources without importing them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

# Packages whose public names are documented, and what a program needs for them.
PACKAGES = (
    ("gflow", "", "[python.md](../python.md) explains it. `**options` are the options of `gbatch`."),
    ("gflow.aio", "library/aio.py", "Coroutines."),
    ("gflow.train", "train", "[training.md](../training.md) explains it. Needs PyTorch."),
    ("gflow.train.callbacks", "ml/train/callbacks.py", "For trainers of other libraries."),
    (
        "gflow.fit",
        "fit",
        "[fit.md](../fit.md) explains it. `estimate` needs PyTorch. "
        "`**options` are the options of the commands: `help(gflow.fit.estimate)` lists names, types "
        "and defaults.",
    ),
)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def make_lines(source: Path) -> list[str]:
    lines: list[str] = []
    for package, place, about in PACKAGES:
        lines += [f"## {package}", "", about, ""]
        for name, node in definitions(source, place):
            lines += [f"### {package}.{name}", "", *describe(node, f"{package}.{name}"), ""]
    return lines


def definitions(source: Path, place: str) -> list[tuple[str, Definition]]:
    """The public classes and functions of a package (by what it exports) or of a module."""
    path = source / place
    if path.suffix:
        return [(node.name, node) for node in ast.parse(path.read_text()).body
                if isinstance(node, Definition) and not node.name.startswith("_")]  # fmt: skip
    found = []
    for node in exports(ast.parse((path / "__init__.py").read_text())):
        if (node.module or "").startswith("gflow."):
            for alias in node.names:
                defined = definition(source, str(node.module), alias.name)
                found += [(alias.asname or alias.name, defined)] if defined else []
    return sorted(found, key=lambda one: (isinstance(one[1], ast.ClassDef), one[0]))


def exports(module: ast.Module) -> Iterator[ast.ImportFrom]:
    """The imports of a package, also those for type checkers, but not those within its functions."""
    for node in module.body:
        for one in ast.walk(node) if not isinstance(node, Definition) else ():
            if isinstance(one, ast.ImportFrom):
                yield one


def definition(source: Path, module: str, name: str) -> Definition | None:
    """The class or function of this name in a module; None for a module or another value."""
    path = source.joinpath(*module.split(".")[1:]).with_suffix(".py")
    body = ast.parse(path.read_text()).body if path.exists() else []
    return next((node for node in body if isinstance(node, Definition) and node.name == name), None)


def describe(node: Definition, name: str) -> list[str]:
    """The signature and the first paragraph of the docstring; of a class, also those of its methods."""
    if not isinstance(node, ast.ClassDef):
        return ["```python", f"{spell(node, name)}", "```", "", summary(node)]
    methods = [one for one in node.body if isinstance(one, Definition) and not isinstance(one, ast.ClassDef)]
    made = next((one for one in methods if one.name == "__init__"), None)
    lines = ["```python", spell(made, name) if made else f"class {name}", "```", "", summary(node)]
    rows = [f"| `{field(one)}` | |" for one in node.body if isinstance(one, ast.AnnAssign)]
    rows += [f"| `{member(one)}` | {summary(one)} |" for one in methods if not one.name.startswith("_")]
    return lines + (["", "| member | meaning |", "|---|---|", *rows] if rows else [])


def spell(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, width: int = 96) -> str:
    """The signature: on one line, or a line for each argument if that is longer than `width`."""
    arguments = spell_arguments(node.args)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    begin = f"await {name}" if isinstance(node, ast.AsyncFunctionDef) else name
    line = f"{begin}({', '.join(arguments)}){returns}"
    if len(line) <= width:
        return line
    return "\n".join([f"{begin}(", *(f"    {one}," for one in arguments), f"){returns}"])


def spell_arguments(found: ast.arguments) -> list[str]:
    """The arguments as text, without self."""
    names = [*found.posonlyargs, *found.args]
    defaults = [None] * (len(names) - len(found.defaults)) + list(found.defaults)
    spelled = [spell_argument(one, default) for one, default in zip(names, defaults, strict=True)]
    if found.posonlyargs:
        spelled.insert(len(found.posonlyargs), "/")
    if names and names[0].arg in ("self", "cls"):
        spelled = [one for one in spelled[1:] if one != "/" or len(found.posonlyargs) > 1]
    if found.vararg:
        spelled.append("*" + ast.unparse(found.vararg))
    elif found.kwonlyargs:
        spelled.append("*")
    spelled += [spell_argument(*one) for one in zip(found.kwonlyargs, found.kw_defaults, strict=True)]
    return spelled + (["**" + ast.unparse(found.kwarg)] if found.kwarg else [])


def spell_argument(one: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return ast.unparse(one)
    return (
        f"{ast.unparse(one)} = {ast.unparse(default)}"
        if one.annotation
        else f"{one.arg}={ast.unparse(default)}"
    )


def field(node: ast.AnnAssign) -> str:
    return ast.unparse(node).replace("|", "\\|")


def member(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """A method with its signature; a property as a name with its type. For a cell of a table."""
    decorators = {ast.unparse(one) for one in node.decorator_list}
    if decorators & {"property", "cached_property"}:
        text = f"{node.name}: {ast.unparse(node.returns)}" if node.returns else node.name
    else:
        text = spell(node, node.name, width=10_000)
    return text.replace("|", "\\|")


def summary(node: Definition) -> str:
    text = (ast.get_docstring(node) or "").partition("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|")
