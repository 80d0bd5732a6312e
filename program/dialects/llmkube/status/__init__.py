"""The statuses of InferenceServices and Models."""
