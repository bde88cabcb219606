"""The event loop: command -> event -> step -> one commit -> effects -> answer."""
