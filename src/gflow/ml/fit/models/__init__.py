"""Sources of models: Hugging Face configurations, torchvision, or a user's own function.

Builds models without weights. Running a step on the fake device belongs in `ml.fit.cuda` and `ml.fit`.
"""
