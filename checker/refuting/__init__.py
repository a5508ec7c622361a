"""What only a REFUTED rests on: a witness at true sizes, in interval arithmetic."""
