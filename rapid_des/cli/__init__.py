"""The `rapid-des` command; the only place that prints."""
