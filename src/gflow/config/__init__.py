"""gflow.toml, the environment and the flags of `gflowd`: one table says what may be set."""
