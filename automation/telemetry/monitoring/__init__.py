"""Dashboards and alert rules, made from code so that tests can hold them to the metrics that exist. Pure.

`documents` lists the files, `herdsman monitoring` writes them, docs/monitoring keeps them for those who apply files.
`grafana` knows the form of a dashboard, `dashboards` and `alerts` the contents.
"""
