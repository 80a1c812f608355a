"""Run directories: what lies where, and their parameters, without the training that made them."""
