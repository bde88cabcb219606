"""Telling people and programs elsewhere what happened: webhooks and e-mail."""
