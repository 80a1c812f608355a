"""Neural metrics with their real packages, in an environment of their own."""
