"""gflowd: makes the engine's decisions durable and carries them out. No other package imports this one.

`main` starts the daemon. `loop/` is the only place where event -> step -> commit -> effects happens.
`execution/` carries effects out. `api/` is the HTTP API, `auth/` users and tokens, `monitors/` background
observers, `notify/` webhooks and mail, `process/` what concerns the daemon's own process.
"""
