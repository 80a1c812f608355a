"""Command-line interface: shared arguments, text input and output, one module per command."""
