"""The dashboard: a run as its learners see it, live and afterwards. `routes` has the whole site."""
