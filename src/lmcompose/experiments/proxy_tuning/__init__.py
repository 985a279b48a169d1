"""Proxy-tuning on real text, small: a family of models trained here, and how much of a tuning the logits bring over."""

from lmcompose.experiments.proxy_tuning.run import run

__all__ = ["run"]
