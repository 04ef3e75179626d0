"""Saving: `agenda`, `interval` and `counting` say which steps, `writer` writes beside the training."""
