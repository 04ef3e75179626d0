"""The part that chooses. Pure: events and time in, effects with reasons out; nothing here does I/O."""
