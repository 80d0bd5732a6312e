"""Model servers that several services of a host share: each service loads its model into one common daemon.

`shared` manages the daemons and their models, `ollama` and `omlx` are clients of their APIs, and `port` is the common
interface.
"""
