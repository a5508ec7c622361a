"""What is archived: the plan format with its IR, relations, and the bundle of proof certificates."""
