"""The HTTP face of the daemon. Identity is the peer's uid, told by the kernel."""
