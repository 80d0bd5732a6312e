"""The complete spec of an LLMInferenceService: presets, base configs and the user's spec, merged, rendered (ADR 26)."""
