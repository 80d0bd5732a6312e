"""Converts custom resources between versions for the API server: the webhook behind KServe's two versions (ADR 27)."""
