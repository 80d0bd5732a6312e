"""The web console: pages for the services, hosts and models of a place, made on the server.

Reading order: `server` (the process), `application` (routes and checks), `pages` (HTML), `reading` (the data), `chat`.
"""
