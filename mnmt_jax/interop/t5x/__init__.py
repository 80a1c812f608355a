"""Our models in t5x's trainer. Needs TensorFlow."""
