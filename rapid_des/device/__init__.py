"""A GPU: its description and the latency of the operators that run on it."""
