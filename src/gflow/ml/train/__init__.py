"""Training runs that stop when asked, save checkpoints and resume. `gflow.train` is the public name.

Works without a daemon. Starting processes belongs in `ml.launch`, memory prediction in `ml.fit`.
"""
