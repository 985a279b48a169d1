"""Exact speculative decoding: which drafted tokens may stay, and the loop that asks."""
