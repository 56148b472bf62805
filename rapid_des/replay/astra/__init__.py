"""ASTRA-sim as a front door: its input files and its rules, lowered to our program."""
