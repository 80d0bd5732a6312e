"""Where model files may be read from, how long a question to a source may take, and the errors of sources.

Shared by the agent (`agent.server.models`), the loop over SSH (`agent.client.ssh.fetch`) and `automation.models`.
Nothing here imports any of them.
"""
