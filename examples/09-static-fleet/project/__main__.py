"""The entry point of `pulumi up` in a separate repository: Herdsman's program with this project's config."""

import runpy

runpy.run_module("program", run_name="__main__")
