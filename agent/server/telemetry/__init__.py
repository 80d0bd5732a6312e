"""What processes use, and what Prometheus reads of an agent."""
