"""Plans and proofs as text: ``tv-show``."""
