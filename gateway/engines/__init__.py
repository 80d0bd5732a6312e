"""The replicas of each model: the choice of one, the exchange with it, and what is known of its engine."""
