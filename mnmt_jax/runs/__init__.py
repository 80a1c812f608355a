"""Run directories: their files and parameters, usable without the training code."""
