import os

from hypothesis import HealthCheck, settings

# How many examples each test tries; `make fuzz` asks for more, with other seeds.
EXAMPLES = int(os.environ.get("GFLOW_FUZZ_EXAMPLES", "20"))
settings.register_profile(
    "fuzz",
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
settings.load_profile("fuzz")
