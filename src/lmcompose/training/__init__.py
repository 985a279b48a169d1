"""Training a composition: recipe -> composition data -> the Hugging Face Trainer -> a saved folder and a loss curve."""
