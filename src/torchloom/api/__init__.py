"""The HTTP API: what people and programs can read about the fleet, and the few requests they can make."""
