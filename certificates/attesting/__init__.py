"""Statements about a bundle that can be signed: what `tv-check` found, and who says so."""
