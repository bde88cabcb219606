"""One file per module. Nothing here starts a process, sleeps or leaves its temporary folder."""
