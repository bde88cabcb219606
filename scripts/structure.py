#!/usr/bin/env python3
"""Print figures about the structure of src/gflow, and check that its imports form no cycle.

    scripts/structure.py            a table: files, lines, import levels and cycles of each package
    scripts/structure.py --check    exit 1 and name the modules if any import cycle exists
    scripts/structure.py --json     the same figures for programs

All imports count: at the top of a module, inside functions, and under `if TYPE_CHECKING`. An import level is
the longest chain of imports below a module, within its package.
"""

from __future__ import annotations

import ast
import json
import statistics
import sys
from collections import Counter
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "src"
PACKAGE = "gflow"


@dataclass
class Module:
    name: str
    lines: int
    functions: list[int]
    imports: set[str] = field(default_factory=set)


def main(words: list[str]) -> int:
    modules = read_modules()
    cycles = find_cycles({name: module.imports for name, module in modules.items()})
    if "--check" in words:
        for cycle in cycles:
            print("import cycle:", " -> ".join(cycle), file=sys.stderr)
        return bool(cycles)
    figures = summarize(modules, cycles)
    print(json.dumps(figures, indent=2) if "--json" in words else as_table(figures))
    return 0


def read_modules() -> dict[str, Module]:
    sources = {module_name(path): path for path in sorted((ROOT / PACKAGE).rglob("*.py"))}
    modules = {}
    for name, path in sources.items():
        text = path.read_text()
        tree = ast.parse(text)
        modules[name] = Module(name, text.count("\n"), function_lengths(tree))
        modules[name].imports = {found for found in imported(tree, sources) if found != name}
    return modules


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, sources: dict[str, Path]) -> set[str]:
    """Modules of gflow that a module imports; `from package import name` is the submodule if one exists."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = inner & sources.keys()
            found.update(submodules)
            if submodules != inner:
                found.add(node.module)
    return found & sources.keys()


def function_lengths(tree: ast.Module) -> list[int]:
    """Lines of each function, without its docstring."""
    lengths = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            is_documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            docstring = first.end_lineno - first.lineno + 1 if is_documented and first.end_lineno else 0
            lengths.append((node.end_lineno or node.lineno) - node.lineno + 1 - docstring)
    return lengths


def find_cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """All cycles: each one found is cut at its first import, until none is left."""
    left = {name: set(targets) for name, targets in graph.items()}
    cycles = []
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            cycle = list(reversed(error.args[1]))
            cycles.append(cycle)
            left[cycle[0]].discard(cycle[1])
        else:
            return cycles


def levels(graph: dict[str, set[str]]) -> int:
    """Number of import levels: the longest chain. Cycles are cut where `find_cycles` cuts them."""
    open_graph = {name: set(targets) for name, targets in graph.items()}
    for cycle in find_cycles(graph):
        open_graph[cycle[0]].discard(cycle[1])
    depth: dict[str, int] = {}
    for name in TopologicalSorter(open_graph).static_order():
        depth[name] = 1 + max((depth[target] for target in open_graph[name]), default=0)
    return max(depth.values(), default=0)


def summarize(modules: dict[str, Module], cycles: list[list[str]]) -> dict[str, object]:
    packages: dict[str, list[Module]] = {}
    for module in modules.values():
        parts = module.name.split(".")
        packages.setdefault(parts[1] if len(parts) > 1 else PACKAGE, []).append(module)
    lengths = sorted(length for module in modules.values() for length in module.functions)
    names = Counter(name.rpartition(".")[2] for name in modules)
    folders = Counter(name.rpartition(".")[0] for name in modules)
    return {
        "files": len(modules),
        "lines": sum(module.lines for module in modules.values()),
        "functions": len(lengths),
        "function_lines": {
            "median": statistics.median(lengths),
            "p90": lengths[len(lengths) * 9 // 10],
            "max": lengths[-1],
        },
        "names_used_twice": sum(count > 1 for count in names.values()),
        "most_modules_in_a_folder": folders.most_common(3),
        "cycles": cycles,
        "packages": {name: figures_of(found) for name, found in sorted(packages.items())},
    }


def figures_of(found: list[Module]) -> dict[str, int]:
    inside = {module.name for module in found}
    graph = {module.name: module.imports & inside for module in found}
    return {
        "files": len(found),
        "lines": sum(module.lines for module in found),
        "levels": levels(graph),
        "cycles": len(find_cycles(graph)),
    }


def as_table(figures: dict[str, object]) -> str:
    packages = figures["packages"]
    assert isinstance(packages, dict)
    rows = [f"{'package':<12}{'files':>7}{'lines':>8}{'levels':>8}{'cycles':>8}"]
    for name, found in packages.items():
        rows.append(f"{name:<12}" + "".join(f"{found[key]:>{8 - (key == 'files')}}" for key in found))
    rows.append("")
    rows += [
        f"{key.replace('_', ' ')}: {value}"
        for key, value in figures.items()
        if key not in ("packages", "cycles")
    ]
    rows += ["cycle: " + " -> ".join(cycle) for cycle in figures["cycles"]]  # type: ignore[attr-defined]
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
