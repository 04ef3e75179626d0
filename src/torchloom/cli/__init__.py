"""The command line: one file per verb. `main` finds the verb and imports the rest only when needed.

verbs      all verbs and their modules; app: those that are typer commands; options: what they share
jobs/, steer/, fleet/, access/, service/, cluster/, places/, shell/, doctor/, top/   the verbs, by family
show/      how things look in a terminal
"""
