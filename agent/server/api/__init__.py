"""The agent's HTTP server: routes, limits, TLS, and the rotation of tokens."""
