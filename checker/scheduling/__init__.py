"""Whether the order in which ranks do what a plan says is safe (obligation 23). No PROVED rests on it."""
