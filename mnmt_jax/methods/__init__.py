"""Methods of the literature, one file for each.

A file defines the method of the same name, which `Model.methods` or `Train.methods` selects, with
its settings, its plan edit and its objectives. `mnmt_jax.design.method_registry` looks it up; there
is no list. Names of helper modules begin with an underscore.
"""
