"""One way to explore, one file."""
