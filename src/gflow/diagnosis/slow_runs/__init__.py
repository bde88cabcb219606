"""Whether a running job is slow, stuck or fine: facts, signs and rules. The client collects the facts."""
