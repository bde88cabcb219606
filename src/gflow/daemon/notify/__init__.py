"""Notifications about events: webhooks and e-mail, delivered at least once.

The event stream of the API belongs in `daemon.api`, the names of events in `wire`.
"""
