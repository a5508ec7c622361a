"""Guesses: which plan tensor is which part of which specification tensor."""
