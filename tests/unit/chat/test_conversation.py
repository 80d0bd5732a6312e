"""The messages and commands of a conversation."""

from __future__ import annotations

from pathlib import Path

from automation.chat.conversation import Conversation


def test_messages_begin_with_the_system_prompt_and_what_was_said() -> None:
    talk = Conversation(system="Be short.")
    talk.add("hi", "hello")
    assert [each["role"] for each in talk.messages("and?")] == ["system", "user", "assistant", "user"]
    assert talk.read("  how are you? ").prompt == "how are you?"


def test_commands_change_the_conversation() -> None:
    talk = Conversation(about="ns/chat")
    assert "/save FILE" in talk.read("/help").told
    talk.read("/system Be kind.")
    talk.read("/set temperature 0.2")
    talk.read("/set stop END")
    assert (talk.system, talk.fields) == ("Be kind.", {"temperature": 0.2, "stop": "END"})
    assert "ns/chat" in talk.read("/show").told
    talk.read("/set stop")
    assert "stop" not in talk.fields
    talk.add("hi", "hello")
    assert talk.read("/retry").prompt == "hi"
    assert talk.turns == []
    assert "no message" in talk.read("/retry").told
    talk.add("hi", "hello")
    talk.read("/clear")
    assert talk.turns == []
    assert talk.read("/bye").ends


def test_an_unknown_command_has_near_ones() -> None:
    assert "did you mean `/clear`?" in Conversation().read("/claer").told


def test_a_conversation_is_saved_and_loaded(tmp_path: Path) -> None:
    talk = Conversation(system="Be short.", fields={"seed": 1})
    talk.add("hi", "hello")
    file = tmp_path / "talk.json"
    assert talk.read(f"/save {file}").told == "Saved 2 messages"
    other = Conversation()
    assert other.read(f"/load {file}").told == "Loaded 2 messages"
    assert (other.system, other.fields, other.turns) == (talk.system, talk.fields, talk.turns)
    file.write_text("[]")
    before = list(other.turns)
    assert str(file) in other.read(f"/load {file}").told
    assert other.turns == before
