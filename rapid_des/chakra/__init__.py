"""Chakra execution traces: the MLCommons schema, every wire generation and dialect, in memory and in files."""
