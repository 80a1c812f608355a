"""A model and its training as data: roles, layers, further sentences, objectives. No arrays."""
