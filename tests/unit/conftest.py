from hypothesis import settings

# A loaded machine must not turn a slow example into a failure.
settings.register_profile("gflow", deadline=None)
settings.load_profile("gflow")
