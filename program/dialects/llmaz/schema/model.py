"""OpenModel (`om`) of llmaz.io/v1alpha1: the source of weights, and the hardware for them."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from program.dialects.crds.schema import CrdModel, Time, optional, required, rule
from program.dialects.llmaz.schema.common import MOST, ResourceList

URI = (
    r"^([gG][cC][sS]|[sS]3)://[^/]+/.+$"
    r"|^[oO][sS][sS]://[^./]+\.[^/]+/.+$"
    r"|^([oO][lL][lL][aA][mM][aA]|[hH][oO][sS][tT])://.+$"
)
"""The addresses that llmaz supports; the scheme may be in upper or lower case."""


class ModelHub(CrdModel):
    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "!has(self.filename) || self.filename == '' || !has(self.name) || self.name == 'Huggingface'",
                    "filename is only valid when the hub is Huggingface",
                    field=".filename",
                ),
                rule(
                    "!has(self.filename) || self.filename == '' || !has(self.allowPatterns) || "
                    "self.allowPatterns.size() == 0",
                    "allowPatterns must be absent when filename names the one file",
                    field=".allowPatterns",
                ),
                rule(
                    "!has(self.filename) || self.filename == '' || !has(self.ignorePatterns) || "
                    "self.ignorePatterns.size() == 0",
                    "ignorePatterns must be absent when filename names the one file",
                    field=".ignorePatterns",
                ),
            ]
        }
    )
    allow_patterns: list[str] = optional("Only files that match one of these are fetched.", [])
    filename: str | None = optional("The one file to fetch; for Huggingface only.")
    ignore_patterns: list[str] = optional("Files that match one of these are not fetched.", [])
    model_id: str = required("The repository, `org/name`.", name="modelID", min_length=1)
    name: Literal["Huggingface", "ModelScope"] = optional("The hub.", "Huggingface")
    revision: str = optional("Branch, tag or commit.", "main")


class ModelSourceSpec(CrdModel):
    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule("has(self.modelHub) || has(self.uri)", "set modelHub or uri"),
                rule("!(has(self.modelHub) && has(self.uri))", "set modelHub or uri, and not both"),
                rule(
                    "!has(self.uri) || self.uri.indexOf('://') == self.uri.lastIndexOf('://')",
                    "uri must have `://` once",
                    field=".uri",
                ),
            ]
        }
    )
    model_hub: ModelHub | None = optional("A repository of a model hub.")
    uri: str | None = optional(
        "`oss://bucket.endpoint/path`, `s3://bucket/path`, `gcs://bucket/path`, `host://path` on the node, or "
        "`ollama://name:tag`.",
        pattern=URI,
        max_length=2048,
    )


class Flavor(CrdModel):
    limits: ResourceList = optional("Resources of a replica, as request and limit.", {}, max_length=MOST)
    name: str = required("Name by which services choose it.", min_length=1)
    node_selector: dict[str, str] = optional("Labels of the nodes that have this hardware.", {})
    params: dict[str, str] = optional("Values for variables in arguments, such as TP and PP.", {})


class InferenceConfig(CrdModel):
    flavors: list[Flavor] = optional("Hardware that serves the model, the preferred first.", [], max_length=8)


class OpenModelSpec(CrdModel):
    """The model."""

    created_at: Time | None = optional("Creation time of the model, for lists of models.")
    family_name: str = required("Family of the model, such as `llama`.", min_length=1)
    inference_config: InferenceConfig | None = optional("Settings for serving the model.")
    owned_by: str = optional("Owner of the model, for lists of models.", "llmaz")
    source: ModelSourceSpec = required("Source of the weights.")
