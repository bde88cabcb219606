"""Users, API tokens, and the rules that the configuration has for submissions.

Permissions of routes belong in `daemon.api`, dropping of privileges in `targets.local.shim`.
"""
