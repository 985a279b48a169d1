"""Proxy-tuning on pretrained models: what a small model learns of a language, brought to a larger one by logits alone."""




