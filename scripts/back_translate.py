"""Back-translate target sentences of the training data into randomly drawn languages."""

from mnmt_jax.commands.back_translate import main
from mnmt_jax.runtime.run_command import run_command

if __name__ == "__main__":
    run_command(main)
