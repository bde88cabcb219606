"""Durable state: one SQLite file, one writer, and readers that see committed state only.

Schema, migrations, backups, retention and summaries. Nothing here decides: constraints only repeat the
engine's invariants.
"""
