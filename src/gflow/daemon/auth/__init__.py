"""Users, tokens, and rules of the configuration for submissions."""
