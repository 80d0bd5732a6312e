"""What a program does with LangChain's client; prints the outcomes as JSON. Runs in the Python `langchain-openai`.

`tests/loop/test_gateway.py` starts it with OPENAI_BASE_URL, OPENAI_API_KEY and MODEL.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import openai
from langchain_core.messages import HumanMessage, SystemMessage  # type: ignore[import-not-found]  # another environment
from langchain_core.prompts import ChatPromptTemplate  # type: ignore[import-not-found]  # as above
from langchain_openai import ChatOpenAI, OpenAI  # type: ignore[import-not-found]  # as above


def outcomes() -> dict[str, Any]:
    """Call the model in the ways that LangChain has."""
    name = os.environ["MODEL"]
    model = ChatOpenAI(model=name, timeout=60, max_retries=0, max_tokens=4, temperature=0, stream_usage=True)
    whole = model.invoke([SystemMessage("Be short."), HumanMessage("Hi")])
    chunks = list(model.stream("Hi"))
    streamed = chunks[0]
    for chunk in chunks[1:]:
        streamed += chunk
    chain = ChatPromptTemplate.from_messages([("system", "Be {how}."), ("human", "{text}")]) | model
    batch = chain.batch([{"how": "short", "text": str(number)} for number in range(4)])
    try:
        ChatOpenAI(model=f"{name}-unknown", max_retries=0).invoke("Hi")
        unknown = ""
    except openai.NotFoundError as error:
        unknown = str(error.code)
    return {
        "finish": whole.response_metadata["finish_reason"],
        "usage": whole.usage_metadata,
        "chunks": len(chunks),
        "streamed": streamed.usage_metadata,
        "same": streamed.content == model.invoke("Hi").content,
        "batch": [each.usage_metadata["output_tokens"] for each in batch],
        "async": asyncio.run(model.ainvoke("Hi")).usage_metadata["output_tokens"],
        "completion": bool(OpenAI(model=name, max_tokens=4, max_retries=0).invoke("Once")),
        "unknown": unknown,
    }


if __name__ == "__main__":
    print(json.dumps(outcomes()))
