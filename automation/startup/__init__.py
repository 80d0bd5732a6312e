"""Makes the parts of a loop from its settings."""
