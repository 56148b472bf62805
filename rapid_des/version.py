"""The version of rapid_des, for whoever must not import all of it."""

__version__ = "0.3.0"
