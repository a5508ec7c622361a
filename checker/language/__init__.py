"""Data and meaning: affine forms, the table of ops."""
