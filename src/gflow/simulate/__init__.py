"""`gflow simulate`: the engine on a virtual clock, fed from a trace.

What belongs here: reading and transforming traces, the replay, its metrics and plots. What does not:
scheduling decisions, which the engine makes, and the command line (`cli.tools.simulate`).
"""
