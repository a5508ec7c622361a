"""Equal layers become functions: what repeats in a program, and what stands between."""
