"""`herdsman install --render` and the options of the command line, without a cluster."""

from __future__ import annotations

import inspect

import pytest
import yaml

from automation.cli.install import install
from automation.cli.main import invoke
from automation.install.objects import documents
from automation.install.options import InstallOptions


@pytest.mark.slow
def test_what_is_printed_is_what_would_be_applied(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--namespace=elsewhere", "--metrics-secret=token", "--set", "workers=8"]
    assert invoke(["install", "--render", *arguments]) == 0
    printed = list(yaml.safe_load_all(capsys.readouterr().out))
    options = InstallOptions(namespace="elsewhere", metrics_secret="token", settings={"workers": "8"})
    assert printed == documents(options)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "workers"], "--set: `workers` is not NAME=VALUE"),
        (["--set", "workers=many"], "--set: workers:"),
        (["--set", "passphrase=s3cret"], "the installation sets"),
        (["--replicas=2"], "both can reach"),
        (["--memory=much"], "--memory:"),
        (["--state=postgres://me:pw@db/x"], "--state:"),
    ],
)
def test_wrong_usage_names_the_option(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["install", "--render", *arguments]) == 64
    told = capsys.readouterr().err
    assert said in told and "Value error" not in told and ":pw@" not in told


def test_every_option_of_an_installation_is_one_of_the_command() -> None:
    assert set(InstallOptions.model_fields) <= set(inspect.signature(install).parameters)
