"""Air-gap bundles: one archive with models, manifests, images and packages, for machines without a network.

`wanted` finds what a bundle must contain, `creating` collects it and writes the archive, `loading` checks the archive
and puts its files in their places, `rewriting` changes the manifests accordingly. `archive` and `contents` define the
format, `images` runs skopeo. Called by `automation.cli.bundle`.
"""
