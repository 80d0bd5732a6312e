"""What the loop tells about itself and its services: metrics, health, logs, traces, dashboards."""
