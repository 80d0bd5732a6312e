"""Informers of the objects that the loop reads, and the services that each change of an object concerns."""
