"""Where processes run: the contract with a host, the clients that carry it there, the server that obeys it."""
