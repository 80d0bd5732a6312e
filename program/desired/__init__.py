"""Desired state as frozen models. Imports no other package of Herdsman except `kubeapi`. Start with `service.py`."""
