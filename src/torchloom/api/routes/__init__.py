"""Routes, one file per subject: look up, call a port, return a schema. The guard decides who may call."""
