"""Inputs on which a plan fails, and guesses that fail on some."""
