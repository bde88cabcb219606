"""The pure engine: it decides, and touches nothing.

No module here reads a clock, a file, a socket or a random number: time and seeds come
inside events, decisions go out as effects. The daemon, the simulator and the property
tests run this same code. Start reading at `engine.step`.
"""
