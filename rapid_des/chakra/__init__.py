"""Chakra execution traces: every wire generation and dialect, in memory and in files."""
