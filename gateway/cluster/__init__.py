"""The services of a cluster: follows them, and makes the routes of the gateway from them; reports its requests."""
