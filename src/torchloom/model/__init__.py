"""Records that the parts exchange and the core keeps. No behaviour beyond validation, no I/O."""
