"""`loom shell` and completion.

prompt, notices: the prompt and what is printed above it; complete, candidates: the next word of a line.
"""
