"""`loom shell` and completion: the prompt, the notices above it, and candidates for the next word."""
