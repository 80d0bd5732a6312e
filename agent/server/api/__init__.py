"""The agent's HTTP server: routes, bounds, TLS and tokens that rotate."""
