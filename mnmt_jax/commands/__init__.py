"""The commands: arguments, text in and out, and one module each."""
