"""`python -m mnmt_jax`: the same as `mnmt`."""

from mnmt_jax.commands.mnmt import run

if __name__ == "__main__":
    run()
