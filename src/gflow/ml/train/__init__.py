"""Training runs that stop when asked, save checkpoints and resume. `gflow.train` is the public name."""
