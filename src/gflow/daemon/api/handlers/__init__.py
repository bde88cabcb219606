"""Handlers, one module per group of routes. Their docstrings are the descriptions in OpenAPI.

The route table is `daemon.api.routes`; handlers must not import it.
"""
