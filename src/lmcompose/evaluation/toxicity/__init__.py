"""How toxic a model's continuations are, by a classifier that the user names: DExperts' two measures, and diversity."""

from lmcompose.evaluation.toxicity.classifier import Classifier
from lmcompose.evaluation.toxicity.run import toxicity

__all__ = ["Classifier", "toxicity"]
