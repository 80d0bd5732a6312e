"""The operator's image, built without Docker and without a registry: `herdsman image build`.

Reading order: `contents` (the files, and how the image starts), `locked` (the packages of requirements.lock), `debian`,
`packages`, `trim`, `fill` (a folder for each layer), `layers` (folder to tar archive), `layout` (the OCI layout), then
`build`.

`contents`, `locked` and `trim` import only the standard library, because the Containerfile runs them too.
"""
