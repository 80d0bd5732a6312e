"""A chat with LangChain (`pip install langchain-openai`). Needs OPENAI_BASE_URL, OPENAI_API_KEY and MODEL."""

from __future__ import annotations

import os

from langchain_openai import ChatOpenAI  # type: ignore[import-not-found]  # in another environment

# A wake of a sleeping model takes as long as the start of its engine.
model = ChatOpenAI(model=os.environ["MODEL"], timeout=600, max_retries=2, stream_usage=True)
print(model.invoke("Hi").content)
for chunk in model.stream("Hi"):
    print(chunk.content, end="", flush=True)
