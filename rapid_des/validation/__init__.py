"""Predictions against measurements: what is scored, how, and against which null model."""
