"""Accessibility of a page in a real browser, by the tree that Chromium gives to screen readers.

The rules are those of axe-core (https://dequeuniversity.com/rules/axe/) for WCAG 2.2 AA that concern pages of text,
tables and forms. docs/adr/0087 says why axe-core itself is not used.
"""

from __future__ import annotations

from tests.support.browser import Browser

NAMED = frozenset(
    {
        *("link", "button", "textbox", "searchbox", "spinbutton", "combobox", "listbox", "checkbox", "radio", "image"),
        *("img", "meter", "progressbar", "navigation", "region", "heading"),
    }
)
"""Roles that need a name."""
# What the tree does not have: the language, ids, the order of headings, headers of tables, the visible focus.
_DOCUMENT = """(() => {
  const all = selector => [...document.querySelectorAll(selector)], faults = [];
  if (document.documentElement.lang !== "en") faults.push("the page has no language");
  if (!document.title.trim()) faults.push("the page has no title");
  if (all("main").length !== 1 || all("main h1").length !== 1) faults.push("not one main landmark with one h1");
  const ids = all("[id]").map(one => one.id);
  if (new Set(ids).size !== ids.length) faults.push("an id is used twice");
  const levels = all("h1, h2, h3, h4, h5, h6").map(one => Number(one.tagName[1]));
  levels.forEach((level, at) => { if (level > (levels[at - 1] || 0) + 1) faults.push(`h${level} skips a level`); });
  for (const table of all("table"))
    if (!table.querySelector("thead th[scope=col]") || table.querySelector("tbody th:not([scope])"))
      faults.push("a table has no headers with a scope");
  for (const label of all("label")) if (!label.control) faults.push(`the label ${label.textContent} has no control`);
  for (const one of all("[aria-describedby], [aria-labelledby]"))
    for (const name of ["aria-describedby", "aria-labelledby"])
      if (one.hasAttribute(name) && !document.getElementById(one.getAttribute(name)))
        faults.push(`${name} refers to nothing`);
  for (const one of all("main pre, main .scroll"))
    if ((one.scrollHeight > one.clientHeight + 1 || one.scrollWidth > one.clientWidth + 1)
        && one.tabIndex < 0 && !one.querySelector("a, button, input"))
      faults.push(`the keyboard does not reach a scrollable ${one.tagName}`);
  for (const one of all("a[href], button, input:not([type=hidden]), select, textarea")) {
    one.focus({ focusVisible: true });
    const style = getComputedStyle(one);
    if (!one.matches(":focus-visible")) faults.push(`the keyboard does not reach ${one.outerHTML.slice(0, 80)}`);
    else if (style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 2)
      faults.push(`the focus is not visible at ${one.outerHTML.slice(0, 80)}`);
    one.blur();
  }
  return faults;
})()"""


async def faults(page: Browser) -> list[str]:
    """Return what a person with a screen reader or a keyboard would miss on the page."""
    # A window in the background has no focus to show.
    await page.call("Emulation.setFocusEmulationEnabled", enabled=True)
    found: list[str] = list(await page.run(_DOCUMENT))
    for node in (await page.call("Accessibility.getFullAXTree"))["nodes"]:
        role = str((node.get("role") or {}).get("value", ""))
        name = str((node.get("name") or {}).get("value", "")).strip()
        if not node.get("ignored") and role in NAMED and not name:
            found.append(f"a {role} has no name")
    return found
