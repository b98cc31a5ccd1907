"""Choices of keys by scores: what oracles, rivals without groups and learned ones share."""
