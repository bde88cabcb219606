"""Wire formats: requests, queries, answers, event names, and the terminal protocol.

Shared by daemon and clients. Routes belong in `daemon.api`, text for terminals in `text`.
"""
