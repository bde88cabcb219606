"""The MCP server for assistants: `gflow mcp serve`. Tools run with the permissions of the calling user."""
