"""What ties a certificate to a run: records of its ranks, its first checkpoint. No verdict rests on it."""
