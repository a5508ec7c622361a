"""Relations that several ops show together, as sums of products between known tensors."""
