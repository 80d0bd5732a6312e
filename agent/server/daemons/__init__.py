"""Model servers that several services of a host share: one daemon, into which each service's model is loaded.

`shared` keeps the daemons and their models; `ollama` and `omlx` speak to them; `port` is what both can do.
"""
