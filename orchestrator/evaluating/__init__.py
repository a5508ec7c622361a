"""Plans in numbers."""
