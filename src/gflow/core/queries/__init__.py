"""Filters and report types for listings, the audit log and usage reports.

Read-only and without I/O: the store and the daemon apply them to their own data.
"""
