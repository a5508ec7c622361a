"""Solvers: unsat cores, confirmation by child processes, and answers that are kept."""
