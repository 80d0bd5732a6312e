"""Accessibility of a page in a real browser: the rules of axe-core for WCAG 2.2 A and AA, and checks that it lacks.

https://github.com/dequelabs/axe-core/blob/develop/doc/rule-descriptions.md lists the rules. The package
`axe-playwright-python` contains the script. Nothing else of it is used, and Playwright is not installed.
"""

from __future__ import annotations

import functools
import json
from importlib import metadata
from pathlib import Path

from tests.support.browser import Browser

TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
"""The rules that run. Order of headings and landmarks are best practices, not criteria of WCAG."""
WIDE, NARROW = 1600, 400
"""Widths of windows in pixels. In the narrow one, tables scroll."""
NAMED = frozenset({"meter", "progressbar"})
"""Roles that need a name. axe-core does not check the elements `meter` and `progress`."""
_RUN = """axe.run(document, {
  runOnly: { type: "tag", values: %s }, resultTypes: ["violations", "incomplete"], preload: false,
  rules: { "color-contrast": { enabled: %s } }
})
.then(found => ({
  passed: found.passes.map(rule => rule.id),
  problems: [...found.violations.map(rule => [rule, ""]), ...found.incomplete.map(rule => [rule, "not decided: "])]
    .flatMap(([rule, state]) => rule.nodes.map(node =>
      `${state}${rule.id}: ${node.target.join(" ")}: ${rule.help}; ${node.failureSummary.replace(/\\s+/g, " ")}`))
}))"""
# axe-core does not check headers of tables, labels without a control, and the visible focus (2.4.7).
_DOCUMENT = """(() => {
  const all = selector => [...document.querySelectorAll(selector)], faults = [];
  for (const table of all("table"))
    if (!table.querySelector("thead th[scope=col]") || table.querySelector("tbody th:not([scope])"))
      faults.push("a table has no headers with a scope");
  for (const label of all("label")) if (!label.control) faults.push(`the label ${label.textContent} has no control`);
  for (const one of all("a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")) {
    if (one.disabled) continue;
    one.focus({ focusVisible: true });
    const style = getComputedStyle(one);
    if (!one.matches(":focus-visible")) faults.push(`the keyboard does not reach ${one.outerHTML.slice(0, 80)}`);
    else if (style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 2)
      faults.push(`the focus is not visible at ${one.outerHTML.slice(0, 80)}`);
    one.blur();
  }
  return faults;
})()"""


@functools.cache
def _axe() -> str:
    """Return the text of the script."""
    files = metadata.distribution("axe-playwright-python").files or ()
    [script] = [each for each in files if each.name == "axe.min.js"]
    return Path(str(script.locate())).read_text(encoding="utf-8")


async def problems(page: Browser, *, contrast: bool = True) -> list[str]:
    """Return what axe-core finds in the page: rule, selector, help, and what to mend.

    The result includes what the rules could not decide. The protocol of the browser runs the script, so that the
    Content-Security-Policy of the page does not refuse it.
    """
    await page.run(f"{_axe()}; true")
    found = await page.run(_RUN % (json.dumps(TAGS), json.dumps(contrast)))
    assert "document-title" in found["passed"] or found["problems"], "axe-core has looked at nothing"
    return list(found["problems"])


async def faults(page: Browser) -> list[str]:
    """Return what a person with a screen reader or a keyboard would miss, and axe-core does not check."""
    # A window in the background has no focus to show.
    await page.call("Emulation.setFocusEmulationEnabled", enabled=True)
    found: list[str] = list(await page.run(_DOCUMENT))
    for node in (await page.call("Accessibility.getFullAXTree"))["nodes"]:
        role = str((node.get("role") or {}).get("value", ""))
        name = str((node.get("name") or {}).get("value", "")).strip()
        if not node.get("ignored") and role in NAMED and not name:
            found.append(f"a {role} has no name")
    return found


async def check(page: Browser) -> None:
    """Fail if the page is not accessible in the light or the dark scheme, or in a narrow window."""
    found = []
    for scheme, width in (("light", WIDE), ("dark", WIDE), ("light", NARROW)):
        await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        await page.call("Emulation.setDeviceMetricsOverride", **size)
        # The contrast of text that is scrolled away cannot be decided. Colours do not depend on the width.
        told = await problems(page, contrast=width == WIDE)
        found += [f"{scheme}, {width} px: {each}" for each in told]
    found += await faults(page)
    where = await page.run("`${location.pathname}: ${document.querySelector('h1')?.textContent}`")
    assert found == [], "\n".join([f"{where} is not accessible:", *found])
