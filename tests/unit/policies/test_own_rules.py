"""Rules in CEL and Python: their input, their messages, and that a rule cannot block or crash the caller."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from components.policies.evaluator import ANSWER_TIMEOUT_S
from components.policies.policy import PolicyUnreadable
from tests.support.builders import http_model, service
from tests.unit.policies.folders import check, document, folder, policies

PYTHON = "from components.policies import rule\n"
SOON_S = 1.0
"""Limit in seconds for an endless rule, which computes until then. A sound rule answers in milliseconds."""


def cel(expression: str, **more: str) -> str:
    return document(rules=[{"name": "r", "cel": expression, "message": "as we want it", **more}])


@pytest.mark.parametrize(
    "expression",
    [
        "service.spec.replicas <= 3",
        "service.metadata.namespace == 'ns' && service.metadata.name.startsWith('s')",
        "!has(service.spec.gpu) || service.spec.gpu < 2",
        "model.source.startsWith('https://')",
        "model.sizeBytes == null || model.sizeBytes < 1000000000",
        "objects.filter(o, o.kind == 'Deployment').all(d, d.spec.template.spec.containers.all(c, has(c.image)))",
        "namespaceLabels.tier == 'prod'",
        "type(service.spec.replicas) == int",
        "double(service.spec.replicas) < 2.5",
    ],
)
def test_expressions_that_are_kept(tmp_path: Path, expression: str) -> None:
    assert check(policies(tmp_path, p_yaml=cel(expression)), labels={"tier": "prod"}) == ()


def test_an_expression_that_is_not(tmp_path: Path) -> None:
    text = cel("service.spec.replicas <= 3", field="spec.replicas", fix="ask for 3 or less")
    (violation,) = check(policies(tmp_path, p_yaml=text), service(replicas=7))
    assert str(violation) == "policy `p`: spec.replicas is 7: as we want it (rule `r`); ask for 3 or less"
    assert violation.mandatory
    assert not violation.failed


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("service.spec.absent == 1", "absent"),
        ("service.spec.replicas + 1", "returns int, not true or false"),
        ("1 / 0 == 1", "zero"),
        ("nosuch(service)", "nosuch"),
        ("'a'.matches('(')", "unclosed group"),
    ],
)
def test_what_cannot_be_evaluated_counts_as_violated(tmp_path: Path, expression: str, why: str) -> None:
    (violation,) = check(policies(tmp_path, p_yaml=cel(expression)))
    assert violation.mandatory
    assert violation.failed
    assert why in violation.value
    assert "rule `r` cannot be evaluated" in violation.rule


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("service.spec.replicas <=", "Syntax error"),
        ("serivce.spec.replicas < 3", "uses `serivce`, which is not a variable"),
        ("(" * 1500 + "true" + ")" * 1500, ""),
        ("1" * 5000, "at most 4096 characters"),
    ],
)
def test_what_cannot_be_read_is_refused_with_file_and_field(tmp_path: Path, expression: str, why: str) -> None:
    with pytest.raises(PolicyUnreadable) as caught:
        policies(tmp_path, p_yaml=cel(expression))
    assert str(caught.value).startswith("p.yaml: spec.rules[0].cel: ")
    assert why in str(caught.value)


def test_an_expression_that_never_ends_stops_nobody(tmp_path: Path) -> None:
    numbers = "[" + ",".join(str(n) for n in range(300)) + "]"
    endless = f"{numbers}.all(a, {numbers}.all(b, {numbers}.all(c, a + b + c >= 0)))"
    kind = [
        {"name": "endless", "cel": endless, "message": "m"},
        {"name": "sound", "cel": "service.spec.replicas < 1", "message": "none"},
    ]
    given = policies(tmp_path, p_yaml=document(rules=kind))
    violations = {v.rule: v for v in check(given)}
    assert "took longer than" in violations["rule `endless` cannot be evaluated, which counts as a violation"].value
    assert not violations["none (rule `sound`)"].failed, "the other rule is heard"
    began = time.monotonic()
    assert len(check(given)) == 2
    assert time.monotonic() - began < ANSWER_TIMEOUT_S, "a rule that took too long rests"


def test_python_rules(tmp_path: Path) -> None:
    text = PYTHON + (
        "@rule('kept')\n"
        "def kept(service, model, objects, namespace_labels):\n"
        "    assert objects[-1]['kind'] == 'Deployment'\n"
        "    assert model['name'] == 'base' and namespace_labels == {'a': 'b'}\n"
        "@rule('sentence', enforcement='advisory')\n"
        "def sentence(service, **others):\n"
        "    print('nothing of this reaches the answers')\n"
        "    return 'replicas are even' if service['spec']['replicas'] % 2 else None\n"
        "@rule('whole', names=['sv*'])\n"
        "def whole(**given):\n"
        "    return [{'rule': 'r', 'field': 'spec.x', 'value': 3, 'fix': 'f'}, 'and more']\n"
        "@rule('others', namespaces=['elsewhere'])\n"
        "def others(**given):\n"
        "    return 'never asked'\n"
    )
    found = check(policies(tmp_path, rules_py=text), labels={"a": "b"})
    assert [(v.policy, v.rule, v.field, v.value, v.fix, v.mandatory) for v in found[:1]] == [
        ("whole", "r", "spec.x", "3", "f", True)
    ]
    assert [(v.policy, v.rule, v.mandatory) for v in found[1:]] == [
        ("whole", "and more", True),
        ("sentence", "replicas are even", False),
    ]


def test_what_a_rule_does_to_its_input_concerns_no_other(tmp_path: Path) -> None:
    text = PYTHON + (
        "@rule('first')\ndef first(service, objects, **_):\n    service['spec'].clear()\n    objects.clear()\n"
        "@rule('second')\ndef second(service, objects, **_):\n"
        "    return f\"{len(objects)} {service['spec']['modelRef']}\"\n"
    )
    (violation,) = check(policies(tmp_path, rules_py=text))
    assert violation.rule == "2 base"


def test_a_shared_file_that_is_broken_later_stops_no_question(tmp_path: Path) -> None:
    text = PYTHON + "from limits import LIMIT\n@rule('r')\ndef r(**_):\n    return f'at most {LIMIT}'\n"
    rules = policies(tmp_path, limits_py="LIMIT = 3\n", rules_py=text)
    folder(tmp_path, limits_py="LIMIT = \n")
    rules.close()  # the next question starts the process again
    (violation,) = check(rules)
    assert violation.failed and "limits.py" in violation.value


def test_files_of_a_folder_may_share_code(tmp_path: Path) -> None:
    shared = "LIMIT = 3\n"
    text = PYTHON + "from limits import LIMIT\n@rule('r')\ndef r(**_):\n    return f'at most {LIMIT}'\n"
    (violation,) = check(policies(tmp_path, limits_py=shared, rules_py=text))
    assert violation.rule == "at most 3"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("raise RuntimeError('no idea')", "RuntimeError: no idea"),
        ("return 7", "TypeError"),
        ("return [7]", "TypeError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import os; os._exit(3)", "ended the process"),
        ("while True: pass", "took longer than"),
        ("def f(): return f() \n    return f()", "RecursionError"),
        ("import itertools; return itertools.repeat('x')", "took longer than"),
    ],
)
def test_a_python_rule_that_breaks_counts_as_violated(tmp_path: Path, body: str, why: str) -> None:
    text = (
        PYTHON + f"@rule('broken')\ndef broken(**_):\n    {body}\n@rule('sound')\ndef sound(**_):\n    return 'heard'\n"
    )
    limit = {"answer_timeout_s": SOON_S} if why == "took longer than" else {}
    violations = {v.policy: v for v in check(policies(tmp_path, **limit, rules_py=text))}
    assert why in violations["broken"].value
    assert violations["broken"].failed
    assert violations["sound"].rule == "heard"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def f(:", "SyntaxError"),
        (PYTHON + "raise ValueError('nothing works')", "nothing works"),
        (PYTHON + "@rule('')\ndef f(): ...", "needs a name"),
        (PYTHON + "@rule('a', enforcement='strict')\ndef f(): ...", "mandatory"),
        (PYTHON + "@rule('a', namespaces='ns')\ndef f(): ...", "lists of patterns"),
        ("import nosuchmodule", "nosuchmodule"),
        ("import os; os._exit(1)", "cannot be loaded"),
    ],
)
def test_a_python_file_that_does_not_load_is_named(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(PolicyUnreadable) as caught:
        policies(tmp_path, rules_py=text)
    assert why in str(caught.value)
    assert "rules.py: " in str(caught.value) or "cannot be loaded" in why


def test_rules_get_no_credentials_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    text = PYTHON + "import os\n@rule('r')\ndef r(**_):\n    return ' '.join(sorted(os.environ))\n"
    (violation,) = check(policies(tmp_path, rules_py=text))
    assert "PATH" in violation.rule
    assert "PASSPHRASE" not in violation.rule
    assert "AWS" not in violation.rule


def test_hostile_words_in_a_service_are_only_data(tmp_path: Path) -> None:
    odd = {"metadata": {"name": "svc", "namespace": "ns"}, "spec": {"image": "\ud800'\"); os.exit()\n\0", "big": 2**70}}
    violations = check(policies(tmp_path, p_yaml=cel("has(service.spec.image)")), cr=odd)
    assert all(v.failed for v in violations), "not convertible at worst, which counts as a violation"
    text = PYTHON + "@rule('r')\ndef r(service, **_):\n    return str(len(service['spec']['image']))\n"
    (violation,) = check(policies(tmp_path / "python", rules_py=text), cr=odd)
    assert violation.rule == str(len(odd["spec"]["image"]))  # type: ignore[index]


def test_many_may_ask_at_once(tmp_path: Path) -> None:
    given = policies(tmp_path, p_yaml=cel("service.spec.replicas < 10", field="spec.replicas"))
    wrong: list[int] = []

    def ask(replicas: int) -> None:
        for _ in range(20):
            values = [v.value for v in check(given, service(replicas=replicas, model=http_model()))]
            if values != ([str(replicas)] if replicas >= 10 else []):
                wrong.append(replicas)

    threads = [threading.Thread(target=ask, args=(n,)) for n in (5, 15, 25)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    given.close()
    assert check(given, service(replicas=5)) == (), "it is started again when something is asked"
    given.close()
