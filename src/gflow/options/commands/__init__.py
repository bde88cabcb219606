"""The options of each command, in a module of its own: a command loads only its own.

Those of gbatch are in `options.job_options`. `gflow api` and `gflow mcp` have only the common options.
"""
