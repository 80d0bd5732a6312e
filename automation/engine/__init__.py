"""The engine that makes rendered services real: the port, Pulumi behind it, and the batches that feed it."""
