"""Nonsense for everything that reads what people write. `make fuzz` goes on for half an hour."""
