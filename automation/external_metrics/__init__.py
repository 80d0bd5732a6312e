"""Serves the requests at the gateways as an external metric for HorizontalPodAutoscalers (ADR 83)."""
