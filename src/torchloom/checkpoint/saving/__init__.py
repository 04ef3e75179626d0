"""Saving: `agenda`, `interval` and `counting` say which steps, `saver` takes states and reports how it went,
`writer` writes beside the training."""
