"""Cost of a configuration before it runs: parameters, FLOPs, bytes, compiled programs."""
