"""Which of several loops may act: the Lease, the shards, and what ends a loop that may act no more."""
