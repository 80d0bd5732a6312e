"""The settings of an llmaz installation: the loader's image and the pods' scheduler. Pure.

They are in a ConfigMap that may be missing. Every setting has a default.
"""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from kubeapi import kinds
from kubeapi.yaml_text import load
from program.desired.facts import Problem
from program.dialects.dialect import Lookup
from program.dialects.llmaz.naming import CONFIG_NAME, CONFIG_NAMESPACE, LOADER_IMAGE

_KEY = "config.data"


@dataclass(frozen=True)
class GlobalConfig:
    """The settings, with their defaults."""

    loader_image: str = LOADER_IMAGE
    scheduler: str = ""
    """Name of the scheduler for pods that name none; empty for Kubernetes' default scheduler."""
    problems: tuple[Problem, ...] = ()


def global_config(look: Lookup) -> GlobalConfig:
    """Read the settings. An invalid setting gets its default, and is reported as a problem."""
    found = look(kinds.CONFIG_MAPS, CONFIG_NAMESPACE, CONFIG_NAME)
    text = ((found or {}).get("data") or {}).get(_KEY)
    if not text:
        return GlobalConfig()
    try:
        read = load(str(text))
    except (yaml.YAMLError, ValueError):
        read = None
    if not isinstance(read, dict):
        return GlobalConfig(problems=(_problem("is not a YAML object"),))
    image, scheduler = read.get("init-container-image") or LOADER_IMAGE, read.get("scheduler-name") or ""
    if not isinstance(image, str) or not isinstance(scheduler, str):
        return GlobalConfig(problems=(_problem("has no image or no scheduler"),))
    return GlobalConfig(loader_image=image, scheduler=scheduler)


def _problem(what: str) -> Problem:
    return Problem(
        reason="NotHonoured",
        message=f"ConfigMap {CONFIG_NAMESPACE}/{CONFIG_NAME}: {_KEY} {what}; the default settings are used",
    )
