"""The parts of every dialect's status: conditions, the phase, why pods do not serve, what services wait for."""
