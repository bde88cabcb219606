"""Answers about the future: why a job waits, when it will start, what a cancel would affect. Read-only."""
