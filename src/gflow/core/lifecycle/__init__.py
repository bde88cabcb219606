"""Event handlers: what each event does to a job, from submission to its end.

A handler changes the state and returns effects. It decides nothing about the order of starts: that is
`core.scheduling`.
"""
