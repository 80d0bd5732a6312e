"""Metrics, health checks, logs, traces and dashboards of the loop and its services."""
