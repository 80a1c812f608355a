"""Experiment trackers of a training run: TensorBoard, MLflow, Weights & Biases."""
