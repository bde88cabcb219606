"""Commands of `gflowd`: start, stop, configure, and install as a service."""
