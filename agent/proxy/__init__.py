"""A small HTTP/1.1 proxy that holds requests for a sleeping service, has it woken, and passes bytes as they come.

One event loop in one thread, one listener for each service. Used by the agent for its processes (`agent.server.sleep`)
and by the loop for pods (`automation.serving.sleep`). Reading order: `server`, `service`, `client` (with `incoming`),
`upstream`, `framing`. Nothing of a request is logged, and nothing in it is changed but the headers that
concern one connection.
"""
