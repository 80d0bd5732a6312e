"""llmaz's kinds, field by field as llmaz publishes them."""
