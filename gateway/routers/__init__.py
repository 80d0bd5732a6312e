"""ModelRouters in the gateway. Reading order: `selection`, `classification`, `runtime`, `forwarding`, `following`."""
