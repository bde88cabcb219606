"""Durable state: one SQLite file, one writer, and readers that see committed state only."""
