"""The objects of the cluster that an agent reads and writes: plans, statuses, its Host object and its Lease."""
