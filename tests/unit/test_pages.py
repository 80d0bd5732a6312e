"""The runner of documents: the commands that it reads from a page, the comparison of outputs, and its shell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.documents import CommandWrong, PageWrong, Shell, Step, difference, run_page, steps


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}


def ran(text: str, tmp_path: Path, environment: dict[str, str]) -> list[str]:
    page = tmp_path / "page.md"
    page.write_text(text)
    with Shell(tmp_path, environment, limit_s=20) as shell:
        return [step.command for step in run_page(page, shell).ran]


def test_a_console_block_has_commands_and_their_outputs() -> None:
    page = "```console\n$ echo a \\\n> b\na b\n$ true\n```\n"
    assert steps(page) == [Step(2, "echo a \\\nb", "a b"), Step(5, "true", "")]


def test_a_script_is_split_into_commands_and_the_text_after_it_belongs_to_the_last() -> None:
    page = "```sh\n# a comment\nx=1\ncat <<END |\nhere\nEND\n  sort\n```\n\n```text\nhere\n```\n"
    assert steps(page) == [Step(3, "x=1", ""), Step(4, "cat <<END |\nhere\nEND\n  sort", "here")]


def test_without_a_text_block_no_output_is_compared() -> None:
    assert steps("```sh\ndate\n```\n```yaml\na: b\n```\n") == [Step(2, "date")]


def test_comments_hold_for_the_next_block_only() -> None:
    page = "<!-- test exit: 2 -->\n<!-- test varies: a | b -->\n```sh\nfalse\n```\n```sh\ntrue\n```\n"
    assert steps(page) == [Step(4, "false", code=2, varies=("a", "b")), Step(7, "true")]


def test_a_skipped_block_may_have_a_command_in_its_place() -> None:
    page = "<!-- test skip: needs\nmacOS -->\n```sh\nlaunchctl list\n```\n<!-- test run: true -->\n"
    assert steps(page) == [Step(4, "launchctl list", skip="needs macOS"), Step(6, "true")]


@pytest.mark.parametrize(
    "page", ["<!-- test skip -->\n```sh\ntrue\n```\n", "<!-- test maybe: 1 -->\n", "```sh\ntrue\n"]
)
def test_a_page_that_cannot_be_read_is_refused(page: str) -> None:
    with pytest.raises(PageWrong):
        steps(page)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("ready  3s", "ready 12.5s"),
        ("since 2026-01-02T03:04:05Z", "since 2026-11-22T09:12:41Z"),
        ("http://192.0.2.2:80/x", "http://10.0.0.1:8443/x"),
        ("digest 33c77c1386e9034c", "digest eadf3647ef168a5a"),
        ("a\n…\nd", "a\nb\nc\nd"),
        ("said …, 3 tokens", "said anything, 3 tokens"),
    ],
)
def test_what_differs_between_two_runs_counts_as_the_same(shown: str, printed: str) -> None:
    assert difference(shown, printed) is None


@pytest.mark.parametrize(
    ("shown", "printed"), [("a", "b"), ("a", "a\nb"), ("a\nb", "a"), ("1/1", "0/1"), ("", "a"), ("a\n…\nd", "a\nb")]
)
def test_another_output_is_a_difference(shown: str, printed: str) -> None:
    assert "but the command prints" in (difference(shown, printed) or "")


def test_words_that_vary_are_named_by_the_page() -> None:
    assert difference("pid 12 of 3", "pid 99 of 3", ("12",)) is None
    assert difference("pid 12 of 3", "pid 99 of 4", ("12",)) is not None


def test_a_page_runs_in_one_shell(tmp_path: Path, environment: dict[str, str]) -> None:
    script = "```sh\nmkdir -p sub && cd sub\nx=1\n```\n"
    page = script + '```yaml title="a.yaml"\na: 1\n```\n```console\n$ cat a.yaml; echo $x\na: 1\n1\n```\n'
    assert ran(page, tmp_path, environment) == ["mkdir -p sub && cd sub", "x=1", "a: 1\n", "cat a.yaml; echo $x"]
    assert (tmp_path / "sub" / "a.yaml").exists()


def test_the_home_is_shown_as_that_of_the_reader(tmp_path: Path, environment: dict[str, str]) -> None:
    assert ran("```console\n$ echo ~/x\n/home/you/x\n```\n", tmp_path, environment)


def test_a_command_is_repeated_until_it_prints_what_is_shown(tmp_path: Path, environment: dict[str, str]) -> None:
    page = "<!-- test repeat -->\n```console\n$ echo x >> n; grep -c x n\n3\n```\n"
    assert ran(page, tmp_path, environment)
    assert (tmp_path / "n").read_text() == "x\n" * 3


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ("```sh\nfalse\n```\n", "page.md:2: `false`: it exits with 1, and not 0"),
        ("```console\n$ echo b\na\n```\n", "the page shows\n    a\nbut the command prints\n    b"),
    ],
)
def test_a_command_that_does_otherwise_fails_the_page(
    page: str, why: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    with pytest.raises(CommandWrong, match=r"^page\.md") as raised:
        ran(page, tmp_path, environment)
    assert why in str(raised.value)


def test_a_command_that_does_not_end_fails_and_is_ended(tmp_path: Path, environment: dict[str, str]) -> None:
    with (
        pytest.raises(CommandWrong, match=r"did not end in 0\.5 s"),
        Shell(tmp_path, environment, limit_s=0.5) as shell,
    ):
        shell.run("echo $$ > pid; exec sleep 60")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
