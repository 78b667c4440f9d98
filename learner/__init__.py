"""Updates: algorithms and what they share."""
