"""What a configuration costs before it runs: parameters, FLOPs, bytes, compiled programs."""
