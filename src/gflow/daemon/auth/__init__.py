"""Users, tokens, and the rules that the configuration has for submissions."""
