"""The commands, one small module each. Loaded only when the hot path cannot answer by itself."""
