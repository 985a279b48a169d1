"""Measuring models: statistics of scores."""
