"""Training and decoding of this project's models with t5x. Needs TensorFlow."""
