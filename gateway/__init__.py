"""One OpenAI endpoint for all models of the fleet: finds the model of each request, and a replica for it.

`server` listens; `connection` handles the requests of one client. The gateway reads the cluster and writes nothing.
"""
