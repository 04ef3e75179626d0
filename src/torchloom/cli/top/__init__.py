"""`loom top`: jobs, ranks and incidents live in a terminal.

top        the verb: flags, and that this is a terminal
readings   what is shown: one reading of the API, made beside the screen
rows       readings as rows of a table: sorted, filtered
screen     the screen: keys, tables, dialogs
"""
