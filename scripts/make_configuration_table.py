"""Print docs/configurations.md: parameters of every model file, settings of every run file."""

from __future__ import annotations

from mnmt_jax.commands.common_flags import CommandParser
from mnmt_jax.runtime.run_command import run_command


def main() -> None:
    """Print the page."""
    CommandParser(description=__doc__).parse_args()
    from mnmt_jax.cost.configurations import configuration_page

    print(configuration_page(), end="")


if __name__ == "__main__":
    run_command(main)
