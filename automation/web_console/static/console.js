// Loads a page's content again when it changes, appends new lines of logs, and runs the chat. The rest works without it.
"use strict";

const main = document.querySelector("main[data-live]");
if (main) {
  const events = new EventSource(`/events?of=${main.dataset.live}`);
  let isStale = false;
  // Whether somebody types, has chosen a link or button, or reads an opened part. The content is loaded afterwards.
  const isInUse = () => {
    const chosen = document.activeElement?.closest("a, button, input, select, summary, textarea");
    return main.contains(chosen ?? null) || main.querySelector("details[open]") !== null;
  };
  const load = async () => {
    if (!isStale || isInUse()) return;
    isStale = false;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (!answer.ok) throw new Error(answer.statusText);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
      if (isInUse()) isStale = true;
      else if (fresh && fresh.innerHTML !== main.innerHTML) main.replaceChildren(...fresh.childNodes);
    } catch {
      isStale = true;
    }
  };
  const changed = () => { isStale = true; load(); };
  events.addEventListener("changed", changed);
  // The stream has no events of changes before it began, or during a break of the connection.
  events.addEventListener("open", changed);
  main.addEventListener("focusout", () => setTimeout(load));
  main.addEventListener("toggle", load, true);
}

const log = document.querySelector("pre[data-follow]");
if (log) {
  const LONGEST = 400000;
  const events = new EventSource(log.dataset.follow), said = document.getElementById("log-state");
  const show = (text) => {
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    log.textContent = text.length > LONGEST ? text.slice(text.indexOf("\n", text.length - LONGEST) + 1) : text;
    if (atEnd) log.scrollTop = log.scrollHeight;
  };
  log.scrollTop = log.scrollHeight;
  events.addEventListener("open", () => { said.textContent = "New lines appear here."; });
  events.addEventListener("whole", ({ data }) => show(JSON.parse(data).text));
  events.addEventListener("lines", ({ data }) => show(log.textContent + JSON.parse(data).text));
  events.addEventListener("ended", ({ data }) => { events.close(); said.textContent = JSON.parse(data).text; });
  events.addEventListener("error", () => {
    if (events.readyState === EventSource.CLOSED) said.textContent = "The log is not followed any more: read it again.";
  });
}

const form = document.getElementById("chat");
if (form) {
  const conversation = document.getElementById("conversation");
  let messages = [];

  const show = (role, text) => {
    const line = document.createElement("div");
    line.className = `said ${role}`;
    line.textContent = text;
    conversation.append(line);
    return line;
  };

  const read = async (answer, line) => {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "", text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const name = /^event: (\w+)$/m.exec(part), data = /^data: (.*)$/m.exec(part);
        if (!data) continue;
        const content = JSON.parse(data[1]).text || "";
        if (name && name[1] === "failed") { show("failed", content); return null; }
        text += content;
        line.textContent = text;
      }
    }
    return text;
  };

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const field = form.elements.message, chosen = form.elements.service.selectedOptions[0];
    const button = form.querySelector("button");
    messages.push({ role: "user", content: field.value });
    show("user", field.value);
    field.value = "";
    button.disabled = true;
    try {
      const answer = await fetch(form.action, {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-Form-Token": form.elements.token.value },
        body: JSON.stringify({ ...chosen.dataset, messages }),
      });
      if (!answer.ok) throw new Error(`the console answered ${answer.status}`);
      const text = await read(answer, show("assistant", "…"));
      if (text === null) messages.pop();
      else messages.push({ role: "assistant", content: text });
    } catch (error) {
      messages.pop();
      show("failed", String(error.message || error));
    }
    button.disabled = false;
    field.focus();
  });

  document.getElementById("clear").addEventListener("click", () => {
    messages = [];
    conversation.replaceChildren();
  });
}
