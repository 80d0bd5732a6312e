"""What all dialects' pods have in common: the schema of their pieces, the fields Kubernetes knows, engine, GPUs."""
