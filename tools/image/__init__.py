"""The operator's image, made without Docker and without a registry: `herdsman image build`.

Reading order: `contents` (what is in it, how it starts), `locked` (which packages of requirements.lock), `debian`,
`packages`, `trim`, `fill` (a folder for each layer), `layers` (folder to tar archive), `layout` (the OCI layout), then
`build`.
`contents`, `locked` and `trim` import the standard library alone: the Containerfile runs them, too.
"""
