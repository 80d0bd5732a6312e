"""Lists the fields of an InferenceService that have no effect, and why."""
