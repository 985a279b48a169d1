"""Is the augmenting model worth anything? A recipe against the same without it, and against cheaper ways."""

from lmcompose.experiments.ablations.run import run

__all__ = ["run"]
