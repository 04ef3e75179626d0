"""The HTTP API: what people and programs see of the fleet, and the few things they may ask for."""
