"""One strategy of choosing who acts, one file."""
