"""Devices and processes: meshes and sharding, several processes, stopping on request."""
