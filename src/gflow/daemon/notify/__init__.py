"""Notifications about events: webhooks and e-mail."""
