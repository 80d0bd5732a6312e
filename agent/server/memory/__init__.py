"""The memory of a host: who may have how much of it, and what gives way when it is short."""
