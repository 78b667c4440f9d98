"""The networks that both actors and learners need."""
