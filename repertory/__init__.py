"""Repertory: the nouns every process shares. Python users start at `repertory.api`."""
