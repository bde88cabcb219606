"""HTTP API of the daemon: servers, route table, permissions, handlers.

A caller is identified by the uid of the socket's peer, or by a token. Handlers send commands to the loop and
never change state themselves.
"""
