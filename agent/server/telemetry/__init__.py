"""Resource usage of processes, and the Prometheus metrics of an agent."""
