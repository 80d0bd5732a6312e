"""Who may use the gateway: the keys of clients, the Secrets that hold them, and the check of each request."""
