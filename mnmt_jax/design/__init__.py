"""Models and training as data, without arrays: roles, layers, batch views and objectives."""
