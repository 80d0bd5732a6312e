"""A small client of the Kubernetes API: raw JSON, typed errors, informers. A leaf that provider, loop and agent share."""
