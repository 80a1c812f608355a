"""The package version; changes to parameter names or numerics bump the minor number."""

__version__ = "0.1.0"
