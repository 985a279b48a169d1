"""The papers' experiments, runnable: each is a function from settings to a result dict that is ready for JSON."""
