"""How things look in a terminal.

output, layout   tables              screen   a status line below logs       watching  redrawing
story            a job in sentences  states   the API's words in options     wording   and in errors
"""
