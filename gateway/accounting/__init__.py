"""What requests cost: the tokens of each answer, the usage of keys and teams, and their limits."""
