"""gflowd: makes the engine's decisions durable and real. Nobody imports this room.

`main` starts it, `loop` is the only place where event -> step -> commit -> effects happens,
`perform` carries effects out, `api/` is the HTTP face.
"""
