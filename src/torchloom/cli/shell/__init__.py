"""`loom shell` and completion: the prompt, notices above it, and what may come next on a command line."""
