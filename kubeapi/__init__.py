"""A small client of the Kubernetes API: raw JSON, typed errors, informers. Shared by provider, loop and agent."""
