"""The memory of a host: the budget, which processes are admitted, and which are stopped when memory is short."""
