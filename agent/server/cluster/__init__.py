"""What an agent says to its cluster and learns from it: plans, statuses, endpoints, its Host and its Lease."""
