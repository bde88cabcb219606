"""Forecasts: why a job waits, when it will start, what a cancel would affect.

Read-only: nothing here changes the state. Texts for users belong in `text`.
"""
