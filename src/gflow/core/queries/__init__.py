"""Filters, orderings and report types for listings and usage reports. Read-only."""
