"""Fields that an earlier apply set, and a later one leaves out."""

from __future__ import annotations

from automation.places.owned_fields import with_owned_fields


def test_fields_of_the_same_manager_stay_and_named_ones_change() -> None:
    live = {
        "metadata": {
            "name": "chat",
            "managedFields": [
                {
                    "manager": "me",
                    "operation": "Apply",
                    "fieldsV1": {
                        "f:spec": {
                            "f:modelRef": {},
                            "f:resources": {"f:gpu": {}, "f:cpu": {}},
                            "f:extraArgs": {},
                        }
                    },
                },
                {"manager": "other", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
            ],
        },
        "spec": {"modelRef": "base", "replicas": 3, "resources": {"gpu": 1, "cpu": "2"}, "extraArgs": ["--x"]},
    }
    document = {"metadata": {"name": "chat"}, "spec": {"modelRef": "base", "resources": {"cpu": "4"}}}
    assert with_owned_fields(document, live, "me") == {
        "metadata": {"name": "chat"},
        "spec": {"modelRef": "base", "resources": {"gpu": 1, "cpu": "4"}, "extraArgs": ["--x"]},
    }


def test_an_object_without_managed_fields_adds_nothing() -> None:
    document = {"metadata": {"name": "chat"}, "spec": {"modelRef": "base"}}
    assert with_owned_fields(document, {"metadata": {}, "spec": {"replicas": 2}}, "me") == document
