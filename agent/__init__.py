"""Runs processes on hosts: the contract with a host, its clients (HTTP and SSH), and the server on the host."""
