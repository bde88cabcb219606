"""Where a model comes from: Hugging Face configurations, torchvision, or a user's own function."""
