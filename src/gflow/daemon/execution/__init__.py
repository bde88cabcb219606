"""Carries out effects: starts and stops jobs, builds their environment, hands them over to clusters.

Runs after the commit and decides nothing: decisions belong in `core`, processes in `targets`.
"""
