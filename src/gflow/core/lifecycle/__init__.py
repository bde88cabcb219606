"""Event handlers: what each event does to a job, from submission to its end.

A handler changes the state and appends effects. The order of starts is decided in `core.scheduling`.
"""
