"""Programs and plans written by hand."""
