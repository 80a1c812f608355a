"""Training: players, objectives, losses, updates, checkpoints, validation, reports."""
