"""Settings of the daemon: one table, read from gflow.toml, the environment and the flags of `gflowd`.

What a setting does belongs in the package that uses it. Options of jobs belong in `options`.
"""
