"""A chat and a stream with the package `openai`. Needs OPENAI_BASE_URL, OPENAI_API_KEY and MODEL."""

from __future__ import annotations

import os
import sys

import openai


def main() -> int:
    """Print the models, an answer and its tokens; return 1 when the gateway refuses the request."""
    # The client repeats a request twice after 429, 503 and lost connections, and waits as `Retry-After` says.
    client = openai.OpenAI()
    model = os.environ["MODEL"]
    print("models:", ", ".join(each.id for each in client.models.list()))
    try:
        answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hi"}], max_tokens=8)
    except openai.NotFoundError as error:
        print(f"no such model: {error.message}", file=sys.stderr)
        return 1
    print("answer:", answer.choices[0].message.content)
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        elif chunk.usage is not None:
            print(f"\ntokens: {chunk.usage.prompt_tokens} in, {chunk.usage.completion_tokens} out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
