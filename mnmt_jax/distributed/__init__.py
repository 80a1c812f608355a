"""Devices and processes: meshes, sharding, multi-process runs, and graceful stopping."""
