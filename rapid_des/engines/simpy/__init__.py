"""The definition of replay, on SimPy."""
