"""Logit composition: one model whose scores are a weighted sum of its members' scores."""
