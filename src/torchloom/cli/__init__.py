"""The command line: one file per verb. `main` finds the verb and imports the rest only when needed.

verbs      all verbs and their modules; options: what they share; declared: how they say what they take
parse      reads command lines that are right; app: help and all other lines, with typer
jobs/, steer/, fleet/, access/, service/, cluster/, places/, shell/, doctor/, top/   the verbs, by family
show/      how things look in a terminal
"""
