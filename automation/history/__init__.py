"""Keeps the applied versions of each service as ControllerRevisions, which the service owns."""
