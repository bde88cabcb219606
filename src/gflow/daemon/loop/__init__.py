"""The event loop: command -> event -> step -> one commit -> effects -> answer.

The only place that changes the engine's state. HTTP belongs in `daemon.api`, effects in `daemon.execution`.
"""
