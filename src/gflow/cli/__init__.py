"""Commands: one module each, loaded only when the hot path cannot answer by itself.

A command parses its options, sends one request and prints the answer. Requests are built in `client`, text is
rendered by the daemon (`text`), and the options of gbatch, gqueue and gstats are in `options`.
"""
