"""Decides which of several loops may act: the Lease, the shards, and the guard that ends a loop without its Lease."""
