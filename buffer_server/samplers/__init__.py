"""One sampler, one file."""
