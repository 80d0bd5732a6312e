"""Decides which services may run: quotas, the queue for GPUs, the capacity of nodes, preemption."""
