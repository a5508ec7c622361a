"""A guess becomes the premises of a stage."""
