"""From the name of a program to its module."""

from __future__ import annotations

from gflow.errors import UsageError

PROGRAMS = ("gbatch", "gqueue", "gjob", "gcancel", "ginfo", "gctl", "gflowd")
# Those that read times themselves, which may be meant in the zone of the configuration.
READ_TIMES = ("gbatch", "gjob")


def main(program: str, words: list[str]) -> int:
    """Run one program; `gflow gqueue …` and `gqueue …` are the same."""
    if program == "gflow":
        return _umbrella(words)
    if program in READ_TIMES:
        from gflow.config import zone

        zone.use_configured()
    # The builtin: importlib costs a millisecond.
    code: int = __import__(f"gflow.cli.{program}", fromlist=("run",)).run(words)
    return code


def _umbrella(words: list[str]) -> int:
    name = words[0] if words else "--help"
    if name == "--version":
        return _version()
    if name in ("--help", "-h"):
        print("usage: gflow COMMAND …\n\ncommands: " + ", ".join(PROGRAMS))
        print("\nEach is also a program of its own: `gflow gqueue` is `gqueue`.")
        return 0
    for candidate in (name, "g" + name):
        if candidate in PROGRAMS:
            return main(candidate, words[1:])
    import difflib

    close = difflib.get_close_matches(name, PROGRAMS, n=1)
    hint = f"did you mean {close[0]}?" if close else "see gflow --help"
    raise UsageError(f"gflow has no command {name!r}", hint=hint)


def _version() -> int:
    from gflow import __version__

    print(f"gflow {__version__}")
    return 0
