"""Where jobs run: `local` on this machine, clusters behind the same port, and the routing between them.

Which job starts, and when, is decided in `core`.
"""
