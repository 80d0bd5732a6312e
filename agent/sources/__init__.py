"""The permitted addresses and paths of model files, time limits for requests to sources, and the errors of sources.

Shared by the agent (`agent.server.models`), the loop over SSH (`agent.client.ssh.fetch`) and `automation.models`. These
modules import none of them.
"""
