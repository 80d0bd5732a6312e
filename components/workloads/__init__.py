"""Kubernetes objects of services that describe their pods themselves (`program.desired.workloads`)."""
