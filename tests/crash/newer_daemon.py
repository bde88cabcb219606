"""A daemon of a later version: its database has one table more."""

from __future__ import annotations

import sys

from gflow.store import open, schema, sqlite

schema.MIGRATIONS = (*schema.MIGRATIONS, "CREATE TABLE of_tomorrow (a INTEGER);")
schema.VERSION = len(schema.MIGRATIONS)
for module in (open, sqlite):
    if hasattr(module, "VERSION"):
        module.VERSION = schema.VERSION

if __name__ == "__main__":
    from gflow.cli.main import run as main

    sys.exit(main("gflowd", ["run", *sys.argv[1:]]))
