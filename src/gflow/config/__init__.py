"""Settings of the daemon: one table, read from gflow.toml, the environment and the flags of `gflowd`."""
