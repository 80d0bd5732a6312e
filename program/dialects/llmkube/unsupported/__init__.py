"""Which fields of an InferenceService have no effect for a service, and why."""
