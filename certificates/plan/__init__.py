"""The problem as data: programs, relations, plan files."""
