"""The output of a preview: text, Markdown, JSON, phrases."""

from __future__ import annotations

import json
import re

from automation.cli.preview import exit_code
from automation.preview.changes import Download, ObjectChange, Preview, ServicePreview
from automation.preview.report import LONGEST_MARKDOWN, as_json, as_terminal_text, headline, markdown, phrases, summary
from components.policies.policy import Violation
from program.desired.facts import Problem
from program.desired.keys import ServiceKey

KEY = ServiceKey("llmkube", "prod", "chat")
CHANGED = ServicePreview(
    KEY,
    (
        ObjectChange("create", "PersistentVolumeClaim", "cache", digest="1", shared=True),
        ObjectChange("same", "Service", "chat"),
        ObjectChange("update", "Deployment", "chat", ("replicas 1 -> 2", "image `a` -> b|c <d>"), "2"),
        ObjectChange("delete", "HorizontalPodAutoscaler", "chat", digest="3"),
    ),
    restarts=("2 pods of Deployment chat",),
    downloads=(Download("https://example.com/m.gguf", "claim cache", 3_000_000_000),),
    notes=("spec.foo: has no effect",),
)
SAME = ServicePreview(ServiceKey("llmkube", "prod", "quiet"), (ObjectChange("same", "Service", "quiet"),))
FOREIGN = ServicePreview(
    ServiceKey("llmkube", "prod", "taken"),
    (ObjectChange("update", "Service", "taken", digest="4", refused="is held by `helm`\nDelete it."),),
)
INVALID = ServicePreview(
    ServiceKey("llmkube", "prod", "wrong"), problem=Problem(reason="SpecInvalid", message="no", field="spec.image")
)


def violated(*, mandatory: bool) -> ServicePreview:
    violation = Violation("registries", "images come from us", "spec.image", "evil", "use ours", mandatory)
    return ServicePreview(KEY, CHANGED.objects, violations=(violation,))


def test_the_summary_is_one_line() -> None:
    assert summary(CHANGED) == (
        "1 to create, 1 to change, 1 to delete; restarts 2 pods of Deployment chat; downloads 2.8 GiB"
    )
    assert summary(SAME) == "nothing changes"
    assert summary(INVALID) == "cannot be applied: spec.image: no"
    assert summary(FOREIGN) == "1 to change; 1 refused"
    assert summary(violated(mandatory=True)).endswith("not allowed by policy `registries`")
    assert "policy" not in summary(violated(mandatory=False))


def test_phrases_name_each_object_that_changes() -> None:
    assert phrases(CHANGED) == (
        "create PersistentVolumeClaim cache",
        "update Deployment chat: replicas 1 -> 2, image `a` -> b|c <d>",
        "delete HorizontalPodAutoscaler chat",
    )


def test_the_digest_leaves_out_what_is_shared_unless_nothing_else_changes() -> None:
    without = ServicePreview(KEY, CHANGED.objects[1:])
    assert CHANGED.digest == without.digest
    assert re.fullmatch(r"[0-9a-f]{16}", CHANGED.digest)
    assert ServicePreview(KEY, CHANGED.objects[:2]).digest not in ("", CHANGED.digest)
    assert SAME.digest == ""


def test_text_has_marks_and_colours_only_where_somebody_looks() -> None:
    text = as_terminal_text(Preview((CHANGED, SAME, FOREIGN), notes=("left out: x",)), colour=False)
    assert "\x1b" not in text
    lines = text.splitlines()
    assert "  ~  Deployment chat" in lines
    assert "       replicas 1 -> 2" in lines
    assert "  +  PersistentVolumeClaim cache (shared)" in lines
    assert "  -  HorizontalPodAutoscaler chat" in lines
    assert "  restarts   2 pods of Deployment chat" in lines
    assert "     ! is held by `helm`" in lines
    assert "prod/quiet" not in text
    assert lines[-1].startswith("1 service would change, 1 service would be refused, 1 service would not change")
    coloured = as_terminal_text(Preview((CHANGED,)), colour=True)
    assert re.sub(r"\x1b\[\d*m", "", coloured) == as_terminal_text(Preview((CHANGED,)), colour=False)
    assert "\x1b[33m~" in coloured


def test_one_service_that_stays_is_told() -> None:
    assert as_terminal_text(Preview((SAME,)), colour=False) == "prod/quiet  nothing changes"
    assert as_terminal_text(Preview(), colour=False) == "No services to preview"


def test_exit_codes() -> None:
    assert exit_code(Preview((SAME,))) == 0
    assert exit_code(Preview((SAME, CHANGED))) == 2
    assert exit_code(Preview((CHANGED, FOREIGN))) == 1
    assert exit_code(Preview((INVALID,))) == 1
    assert exit_code(Preview(errors=("x",))) == 1
    assert exit_code(Preview((violated(mandatory=True),))) == 1
    assert exit_code(Preview((violated(mandatory=False),))) == 2


def test_markdown_folds_services_and_escapes_what_they_say() -> None:
    text = markdown(Preview((CHANGED, SAME, FOREIGN, INVALID), errors=("a.yaml: <b> is @team wrong",)))
    assert "| 1 | 2 | 0 | 1 | 1 | 1 |" in text
    assert text.count("<details") == text.count("</details>") == 3
    assert "<details open><summary>:x: <b>prod/taken</b>" in text
    assert "! Deployment chat\n!     replicas 1 -> 2" in text
    assert "- :x: a.yaml: &lt;b&gt; is \\@team wrong" in text
    assert "prod/quiet" not in text
    fenced = ServicePreview(KEY, (ObjectChange("update", "Deployment", "x", ("a ```` b",), "1"),))
    assert "`````diff" in markdown(Preview((fenced,)))


def test_markdown_stays_below_what_a_comment_may_hold() -> None:
    many = tuple(
        ServicePreview(ServiceKey("llmkube", "prod", f"chat-{number}"), CHANGED.objects, notes=("long " * 100,))
        for number in range(300)
    )
    text = markdown(Preview(many))
    assert len(text) < LONGEST_MARKDOWN + 4000
    assert "Too long to show: `prod/chat-" in text
    assert text.count("<details") == text.count("</details>")


def test_json_tells_all_and_keeps_its_shape() -> None:
    found = json.loads(json.dumps(as_json(Preview((CHANGED, SAME, INVALID, violated(mandatory=True)), ("e",), ("n",)))))
    assert found["summary"] == {
        "services": 4,
        "resources": 0,
        "changed": 2,
        "refused": 2,
        "create": 2,
        "update": 2,
        "replace": 0,
        "delete": 2,
        "same": 3,
    }
    first = found["services"][0]
    assert first["digest"] == CHANGED.digest
    assert first["downloads"] == [
        {"source": "https://example.com/m.gguf", "where": "claim cache", "sizeBytes": 3_000_000_000}
    ]
    assert [each["op"] for each in first["objects"]] == ["create", "same", "update", "delete"]
    assert found["services"][2]["problem"]["field"] == "spec.image"
    assert found["services"][3]["violations"][0]["policy"] == "registries"
    assert found["errors"] == ["e"]


def test_the_headline_counts() -> None:
    assert headline(Preview((CHANGED, CHANGED))) == ("2 services would change (2 to create, 2 to change, 2 to delete)")
