"""The methods: one paper, one file.

Every file is a method that `Model.methods` or `Train.methods` chooses by the name of the file, with
its settings, its edit of the plan and its objectives. `mnmt_jax.design.method_registry` finds it;
nothing lists it. Names of helper modules begin with an underscore.
"""
