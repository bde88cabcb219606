"""Durable state: one SQLite file, one writer, committed state for everybody who reads."""
