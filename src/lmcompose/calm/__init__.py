"""Representation composition (CALM, arXiv 2401.02412): the anchor cross-attends to augmenting hidden states."""
