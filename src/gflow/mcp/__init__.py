"""gflow for assistants that speak MCP: `gflow mcp serve`. With the caller's own permissions, and no more."""
