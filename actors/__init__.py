"""Rollouts: environment, policy and exploration make transitions; evaluation."""
