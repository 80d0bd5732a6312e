"""Desired state as frozen models. Of the project it imports only `kubeapi` and `program.module_import`.

Start with `service.py`.
"""
