"""LLMKube's kinds, field by field as LLMKube publishes them."""
