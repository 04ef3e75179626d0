"""The command line: one file per verb. `main.py` finds the verb; the rest is imported when it is needed."""
