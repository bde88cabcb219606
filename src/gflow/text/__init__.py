"""Text for terminals: tables, job pages, durations, the columns of gqueue. Also CSV, YAML and metrics.

Pure functions from data to text. JSON belongs in `wire`, printing in `cli`.
"""
