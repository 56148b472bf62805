"""Lowering to a program of visits, the engines that run it, and what they saw."""
