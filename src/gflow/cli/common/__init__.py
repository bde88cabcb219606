"""Parts that several commands share: error reports, status lines, log and terminal output.

No command belongs here, and nothing that only one command uses.
"""
