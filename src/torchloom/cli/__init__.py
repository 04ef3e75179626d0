"""The command line: one file per verb. `main.py` finds the verb and imports the rest only when needed."""
