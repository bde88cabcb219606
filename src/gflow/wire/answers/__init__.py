"""Answers of the API: one struct each, with the function that builds it from objects of the engine.

The same struct is encoded and described: OpenAPI derives its schemas from these types, and the docstrings
become descriptions. The keys of an answer have the order of the fields. Keyword-only fields come last, so a
base with `kw_only=True` puts its keys after those of a subclass without.

A test requests each answer from a daemon and validates it against its type, including every key.
"""
