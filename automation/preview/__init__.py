"""Says what would change before anything is touched: by dry runs of the API server, without engine, state or lock."""
