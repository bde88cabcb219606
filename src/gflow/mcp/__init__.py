"""The MCP server for assistants: `gflow mcp serve`. Tools run with the permissions of the calling user.

A tool calls the HTTP API like any client. Nothing here has access to the store or the engine.
"""
