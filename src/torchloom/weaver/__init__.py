"""The control service: receive events, let the core choose, perform what it chose."""
