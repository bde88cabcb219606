"""Wire formats: requests, queries, answers, events, the JSON view of a job, and the terminal protocol.

Shared by daemon and clients. Routes belong in `daemon.api`, text for terminals in `text`.
"""
