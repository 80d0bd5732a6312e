"""What statuses of every dialect are made of: conditions, the phase, why pods do not serve, what services wait for."""
