"""How things look in a terminal.

output, layout   tables              screen   a status line below logs       watching  redrawing
folding          bars and colours of logs
story            a job in sentences  states   the API's words in options     wording   and in errors
"""
