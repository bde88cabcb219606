"""The tables of command-line options, and the readers of their values.

The command line imports this package on every call: without errors, no module here may import anything
heavier than builtins.
"""
