"""Environments of our own, named as `repertory.environments.module:Name`."""
