"""The complete spec of an LLMInferenceService: presets, base configs and its own spec, merged and rendered (ADR 26)."""
