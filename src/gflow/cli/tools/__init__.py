"""Commands that exist only as `gflow NAME`: fit, plan, launch, scale, simulate and others.

Options and output of each; the work is done in `ml`, `simulate`, `mcp` and `client`.
"""
