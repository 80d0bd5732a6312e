"""A small client of the Kubernetes API: raw JSON, typed errors, informers. Provider, loop and agent share it."""
