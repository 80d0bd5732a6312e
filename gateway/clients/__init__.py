"""Clients' connections: the reading of requests, and the answers on their way to the client."""
