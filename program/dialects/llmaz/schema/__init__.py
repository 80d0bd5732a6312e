"""llmaz's kinds. The fields are the same as in llmaz's CRDs."""
