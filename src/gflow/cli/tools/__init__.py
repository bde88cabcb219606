"""Commands that exist only as `gflow NAME`: fit, plan, launch, scale, simulate and others."""
