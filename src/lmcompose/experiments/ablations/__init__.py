"""Is the augmenting model worth anything? A recipe trained as it is, and with its augmenting models replaced."""

from lmcompose.experiments.ablations.run import run

__all__ = ["run"]
