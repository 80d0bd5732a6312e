"""The common parts of all dialects' pods: the schema of their fields, the fields of Kubernetes, engine and GPUs."""
