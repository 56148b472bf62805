"""Hostile inputs: good files of every kind, and what a seeded attacker makes of them."""
