"""`gflow simulate`: the real engine on a clock of its own, fed from a trace."""
