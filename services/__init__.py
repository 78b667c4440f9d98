"""What holds a run together: launcher, run directory, metrics, command line."""
