"""Measured operators: GEMMs, attention, vector kernels, MoE feed-forwards and learned regressors."""
