"""How a training script scales: run at several sizes, measured, judged."""
