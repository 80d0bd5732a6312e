"""A small HTTP/1.1 proxy that holds requests for a sleeping service, wakes it, and streams requests and responses.

One event loop in one thread, one listener per service. The agent uses it for its processes (`agent.server.sleep`), the
loop for pods (`automation.serving.sleep`). Reading order: `server`, `service`, `client` (with `incoming`), `upstream`,
`framing`. The proxy never logs a request, and changes only the headers that concern one connection.
"""
