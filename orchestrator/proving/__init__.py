"""From a plan to its proof: order, lemmas, files."""
