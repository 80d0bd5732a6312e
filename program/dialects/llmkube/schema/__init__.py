"""LLMKube's kinds. The fields are the same as in LLMKube's CRDs."""
