"""The statuses of LLMInferenceServices and of their configs."""
