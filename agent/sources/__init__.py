"""The permitted addresses and paths of model files, signatures, time limits and errors of requests to sources.

Shared by the agent (`agent.server.models`), the loop over SSH (`agent.client.ssh.fetch`) and `automation.models`. These
modules import none of them.
"""
