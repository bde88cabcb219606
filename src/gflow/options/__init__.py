"""The one table of job options, and how each value is written and read.

Imported by the command line on every call: no module here may import anything
heavier than builtins on its happy path.
"""
