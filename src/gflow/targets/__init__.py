"""Where jobs run: `local` on this machine, others behind the same port."""
