"""Hosts: their liveness, the placement of services, endpoints, and hosts over SSH."""
