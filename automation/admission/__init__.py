"""Who may run, and where: quotas, the queue for GPUs, what nodes can hold, preemption, hosts."""
