"""Shows a change before it is made, by dry runs of the API server: without engine, state or lock."""
