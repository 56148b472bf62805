"""Collective algorithms: pure functions from a group size and bytes to transfers."""
