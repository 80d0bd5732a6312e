"""The templates of configs: supported expressions, messages for mistakes, and hostile templates."""

from __future__ import annotations

import contextlib
import json
import string
import subprocess
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.kserve.settings import Settings
from program.dialects.kserve.templating.data import spec_data, template_data
from program.dialects.kserve.templating.functions import functions, shell_quote
from program.dialects.kserve.templating.render import render

SPEC: Json = {
    "model": {"uri": "hf://o/m", "name": "qwen", "lora": {"adapters": [{"name": "sql", "uri": "hf://o/sql"}]}},
    "parallelism": {"tensor": 2, "dataRPCPort": 6000},
    "labels": {"team": "a", "tier": ""},
    "prefill": {},
    "replicas": 0,
    "template": {
        "terminationGracePeriodSeconds": 90,
        "nodeSelector": {"b": "2", "a": "1"},
        "containers": [{"name": "main", "image": "i"}],
    },
    "kvCacheOffloading": {"cpu": "1Gi"},
}
META: Json = {"name": "chat", "namespace": "team", "annotations": {"a/b": "c"}, "labels": None}
DATA = template_data(META, SPEC, Settings(tls=True, gateway_name="edge", gateway_namespace="net"))


def rendered(text: Any, data: Any = DATA) -> Any:
    return render(text, data, functions(spec_data(SPEC)), field="spec")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no expression", "no expression"),
        ("{ not } one", "{ not } one"),
        ("{{ .ObjectMeta.Name }}/{{ .ObjectMeta.Namespace }}", "chat/team"),
        ("{{ .Name }}-{{.Namespace}}", "chat-team"),
        ("{{ .Spec.Model.Name }} {{ .Spec.Model.URI }}", "qwen hf://o/m"),
        ("{{ .Spec.Parallelism.Tensor }} {{ .Spec.Parallelism.DataRPCPort }}", "2 6000"),
        ("{{ .Spec.WorkloadSpec.Parallelism.Tensor }}", "2"),
        ("{{ .GlobalConfig.SystemNamespace }} {{ .GlobalConfig.EnableTLS }}", "kserve true"),
        ("{{ .GlobalConfig.IngressGatewayNamespace }}/{{ .GlobalConfig.IngressGatewayName }}", "net/edge"),
        ("{{ .GlobalConfig.ModelBasedRoutingHeaderName }}", "X-Gateway-Model-Name"),
        ("{{ .GlobalConfig.InferencePoolNamespacedName }}", "team/chat-inference-pool"),
        ("{{ .Spec.Template.TerminationGracePeriodSeconds }}", "90"),
        ("{{ (index .Spec.Template.Containers 0).Image }}", "i"),
        ("{{ .Spec.Tracing }}x", None),
        ("{{ .ObjectMeta.UID }}|", "|"),
        # Blocks.
        ("{{ if .GlobalConfig.EnableTLS }}HTTPS{{ else }}HTTP{{ end }}", "HTTPS"),
        ("{{ if .Spec.Tracing }}a{{ else if .Spec.Prefill }}b{{ else }}c{{ end }}", "b"),
        ("{{ if .Spec.Worker }}a{{ end }}", ""),
        ("{{ if and .Spec.Parallelism .Spec.Parallelism.Data }}{{ .Spec.Parallelism.Data }}{{ else }}-{{ end }}", "-"),
        ("{{ if and .Spec.Tracing .Spec.Tracing.Sampler }}a{{ else }}b{{ end }}", "b"),
        ("{{ if or .Spec.Worker .Spec.Prefill }}a{{ end }}", "a"),
        ("{{ with .Spec.Parallelism }}{{ .Tensor }}{{ $.Name }}{{ end }}", "2chat"),
        ("{{ with .Spec.Worker }}a{{ else }}b{{ end }}", "b"),
        ("{{ with $x := .Spec.Model }}{{ $x.Name }}{{ end }}", "qwen"),
        ("{{ range .Spec.Model.LoRA.Adapters }}{{ .Name }}={{ .URI }};{{ end }}", "sql=hf://o/sql;"),
        ("{{ range $at, $a := .Spec.Model.LoRA.Adapters }}{{ $at }}{{ $a.Name }}{{ end }}", "0sql"),
        ("{{ range $key, $value := .Spec.Labels }}{{ $key }}:{{ $value }},{{ end }}", "team:a,tier:,"),
        ("{{ range .Spec.BaseRefs }}a{{ else }}none{{ end }}", "none"),
        ("{{ range $key, $value := .Spec.Template.NodeSelector }}{{ $key }}={{ $value }} {{ end }}", "a=1 b=2 "),
        ("{{ index .ObjectMeta.Annotations `none` }}|{{ index .Spec.Template.NodeSelector `a` }}", "|1"),
        ("{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ end }}{{ $x }}", "2"),
        ("a{{/* a comment }} in braces */}}b", "ab"),
        ("{{ `{{` }} messages {{ `}}` }}", "{{ messages }}"),
        # White space: a dash removes spaces, and keeps line ends.
        ("a  {{- .Name -}}  b", "achatb"),
        ("a \n  {{- .Name -}} \n b", "a \nchat\n b"),
        ("{{-3}}", "-3"),
        ("{{ if true -}} a {{- end }}", "a"),
        # Functions.
        ("{{ ChildName .ObjectMeta.Name `-epp` }}", "chat-epp"),
        ('{{ ChildName "x" "-y" }}', "x-y"),
        ("{{ .Name | printf `%s-%d-%v-%q%%` `a` 1 true }}", 'a-1-true-"chat"%'),
        (
            "{{ eq .Name `a` `chat` }} {{ ne 1 2 }} {{ lt 1 2 }} {{ ge 2 2 }} {{ gt `b` `a` }} {{ le 3 2 }}",
            "true true true true true false",
        ),
        ("{{ not .Spec.Worker }} {{ len .Spec.Labels }} {{ len `abc` }}", "true 2 3"),
        ("{{ default 5555 .Spec.Parallelism.Data }} {{ .Spec.Parallelism.Tensor | default 9 }}", "5555 2"),
        ("{{ index .ObjectMeta.Annotations `a/b` }}", "c"),
        ("{{ toJson .Spec.Labels }}", '{"team":"a","tier":""}'),
        ("{{ print .Name 1 }}", "chat1"),
        ("{{ (.Name | print) | print }}", "chat"),
        ("{{ shutdownTimeout }} {{ shutdownTimeout .Spec.Prefill }} {{ shutdownTimeout 10 }}", "70 40 0"),
        (
            "{{ shutdownTimeout .Spec.Template 15 }} {{ shutdownTimeout nil 15 }} {{ shutdownTimeout nil 30 }}",
            "70 40 25",
        ),
        ("{{ kvTransferConfig .Spec.Prefill }}", ""),
        ("{{ kvTransferJson .Spec.Prefill }}", ""),
        ("{{ kvTransferConfig .Spec.Prefill.KVCacheOffloading }}", ""),
        (
            "{{ kvTransferJson }}",
            '{"kv_connector":"OffloadingConnector","kv_connector_extra_config":{"cpu_bytes_to_use":1073741824,'
            '"eviction_policy":"lru","spec_name":"TieringOffloadingSpec"},"kv_role":"kv_both"}',
        ),
        ("{{ shellQuote `it's $HOME` }}", "'it'\\''s $''HOME'"),
    ],
)
def test_expressions(text: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(SpecInvalid, match="has no value"):
            rendered(text)
    else:
        assert rendered(text) == expected


def test_values_without_expressions_are_shared() -> None:
    plain: Json = {"a": ["x", {"b": 1, "c": None}], "d": True}
    assert rendered(plain) is plain
    mixed: Json = {"a": plain, "b": "{{ .Name }}"}
    assert rendered(mixed) == {"a": plain, "b": "chat"}
    assert rendered(mixed)["a"] is plain
    assert mixed["b"] == "{{ .Name }}"


def test_keys_are_rendered_too() -> None:
    assert rendered({"{{ .Name }}/x": 1, "y": 2}) == {"chat/x": 1, "y": 2}


def test_arguments_that_come_to_nothing_are_left_out() -> None:
    """The peer passes four empty arguments to the endpoint picker when TLS is off."""
    assert rendered(["a", "{{ if .Spec.Worker }}--x{{ end }}", "", "{{ .Name }}"]) == ["a", "", "chat"]
    assert rendered({"value": "{{ if .Spec.Worker }}x{{ end }}"}) == {"value": ""}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ .Nope }}", "there is no field `.Nope`"),
        ("{{ .Spec.Modell.Name }}", "there is no field `.Spec.Modell`"),
        ("{{ .Spec.Router.Route }}", "`.Spec.Router` is not set"),
        ("{{ .Spec.Labels.zone }}", "`.Spec.Labels` has no entry `zone`"),
        ("{{ .Name.First }}", "`.Name` is a text, which has no fields"),
        ("{{ .Spec.Model }}", "is an object, which cannot be written as text"),
        ("{{ .Spec.Model.Name", "has no closing `}}`"),
        ("{{ .Spec.Model.Name }", "has no closing"),
        ("{{ if .Name }}", "has no `{{ end }}`"),
        ("{{ end }}", "ends nothing"),
        ("{{ if }}a{{ end }}", "lacks an expression"),
        ("{{ else }}", "ends nothing"),
        ("{{ unknownFunc 1 }}", "there is no function `unknownFunc`"),
        ("{{ messages }}", "For braces that do not begin a template, write {{ `{{` }}"),
        ("{{ ChildName .Name }}", "`ChildName` does not take these 1 arguments"),
        ("{{ ChildName .Name 1 }}", "`ChildName` does not take"),
        ("{{ .Name .Name }}", "only functions take arguments"),
        ("{{ .Name | .Name }}", "only functions take arguments"),
        ("{{ (.Name }}", "has no closing `)`"),
        ("{{ $nope }}", "there is no variable `$nope`"),
        ("{{ template `x` }}", "there is no function `template`"),
        ("{{ define `x` }}", "there is no function `define`"),
        ("{{ call .Name }}", "there is no function `call`"),
        ("{{ printf `%x` 1 }}", "`printf` supports"),
        ("{{ printf `%s` }}", "`printf` does not take"),
        ("{{ index .Spec.Template.Containers 7 }}", "`index` finds no member 7"),
        ("{{ index .Spec.Template.Containers -1 }}", "`index` finds no member -1"),
        ("{{ eq .Spec .Spec }}", "`eq` does not take"),
        ("{{ lt 1 `a` }}", "`lt` does not take"),
        ("{{ range .Name }}{{ end }}", "`range` takes"),
        ("{{ range $a, $b, $c := .Spec.Labels }}{{ end }}", "wrong number"),
        ('{{ "\\x" }}', "escape"),
        ("{{ 'a' }}", "is not understood"),
        ("{{ 1a }}", "is not understood"),
        ("{{ .a.b.__class__ }}", "there is no field `.a`"),
        ("{{ .__class__.__init__.__globals__ }}", "there is no field `.__class__`"),
        ("{{ .Spec.Template.__class__.mro }}", "is not set"),
        ("{{ .ObjectMeta.value }}", "there is no field"),
        ("{{ and }}", "need arguments"),
    ],
)
def test_mistakes_are_named(text: str, words: str) -> None:
    with pytest.raises(SpecInvalid) as raised:
        rendered({"template": {"containers": [{"args": ["a", text]}]}})
    assert raised.value.field == "spec.template.containers[0].args[1]"
    assert raised.value.reason == "InvalidRenderedConfig"
    assert words in raised.value.why
    assert raised.value.why.count(text[:20]) <= 1 or text == "{{ end }}"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "{{ $x := `aaaaaaaaaaaaaaaa` }}" + "{{ $x = printf `%s%s` $x $x }}" * 40, id="a text that doubles"
        ),
        pytest.param("{{ range .Spec.Many }}" * 8 + "a" + "{{ end }}" * 8, id="loops in loops"),
        pytest.param("{{ if true }}" * 500 + "{{ end }}" * 500, id="deep blocks"),
        pytest.param("{{ " + "(" * 400 + "1" + ")" * 400 + " }}", id="deep parentheses"),
        pytest.param("{{ print " + "1 " * 20_000 + "}}", id="many arguments"),
        pytest.param("{{ .Name }}" * 20_000, id="a long one"),
        pytest.param("{{" * 30_000, id="braces alone"),
        pytest.param("{{/*" * 15_000, id="comments that never end"),
        pytest.param("{{ `" + "`" * 60_000, id="quotes"),
        pytest.param("{{ " + " " * 60_000, id="spaces"),
        pytest.param("{{ " + " -" * 30_000, id="dashes"),
        pytest.param("{{ range .Spec.Many }}{{ toJson $.Spec }}{{ end }}", id="much output"),
        pytest.param("{{ if true }}" + "{{ else if true }}" * 3000 + "{{ end }}", id="long chains"),
    ],
)
def test_hostile_templates_end_soon(text: str) -> None:
    many = template_data(META, {**SPEC, "template": {"m": ["x" * 100] * 3000}}, Settings())
    began = time.process_time()
    with pytest.raises(SpecInvalid) as raised:
        rendered(text.replace(".Spec.Many", ".Spec.Template.M"), many)
    assert time.process_time() - began < 3
    assert len(raised.value.why) < 600


def test_many_templates_share_one_budget() -> None:
    texts = [f"{{{{ range .Spec.Labels }}}}{{{{ $.Name }}}}{{{{ end }}}}{at}" for at in range(20_000)]
    with pytest.raises(SpecInvalid, match="with the other templates"):
        rendered(texts)


def test_deep_objects_are_refused() -> None:
    deep: Any = "{{ .Name }}"
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(SpecInvalid, match="nested too deep"):
        rendered(deep)


WORDS = "{{ }} {{- -}} .Spec .Model .Name if range with end else ( ) $x := printf `%s` 1 and index , |"
PARTS = st.sampled_from([*WORDS.split(), " ", '"', "\n", "if ", "range "])


@given(st.lists(st.one_of(PARTS, st.text(string.printable, max_size=3)), max_size=25).map("".join))
@settings(max_examples=400, deadline=None)
@pytest.mark.slow
def test_whatever_is_written_ends_in_a_text_or_a_named_mistake(text: str) -> None:
    with contextlib.suppress(SpecInvalid):
        assert isinstance(rendered(text), str)


@given(st.text(max_size=30))
@settings(max_examples=200, deadline=None)
def test_quoted_words_hold_no_reference_of_kubernetes(text: str) -> None:
    quoted = shell_quote(text)
    assert "$(" not in quoted
    assert "$$" not in quoted


def test_the_flag_of_kserves_own_start_scripts_survives_both_of_their_shells() -> None:
    script = rendered('FLAG="{{ kvTransferConfig .Spec.KVCacheOffloading }}"; eval "printf \'%s\\n\' ${FLAG}"')
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=20)
    flag, value = done.stdout.splitlines()
    assert flag == "--kv-transfer-config"
    assert json.loads(value) == json.loads(rendered("{{ kvTransferJson }}"))
