"""Predict how long a distributed LLM training step or inference request takes, by discrete events."""
