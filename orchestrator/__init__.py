"""Capture, evaluation, shape reduction, relation inference, stages and proof scheduling."""
