"""Every model that vflow runs, in PyTorch: defined once, trained, exported as checkpoints."""
