"""Two tokenizers over one text."""
