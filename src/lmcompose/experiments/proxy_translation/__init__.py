"""Proxy-tuning on pretrained models: what a small one learns of a language, brought to a larger one by logits alone."""

from lmcompose.experiments.proxy_translation.run import run

__all__ = ["run"]
