"""Checks of a page that is open in a browser. Each returns the problems that it finds."""

from collections.abc import Iterator
from typing import Final, get_args

from playwright.sync_api import Page

from tests.browser import Scheme

WIDE: Final = 1400  # pixels
TABLET: Final = 768
NARROW: Final = 390
CONTRAST: Final = 4.5  # WCAG 2.2, level AA, for text of any size
_MOST_ROUNDS: Final = 3  # a part of the page that scrolls also takes the focus

# Text that a person can see: its colour, the colours behind it, and the ratio of their luminances. A canvas turns every
# notation of a colour into bytes.
_LOW_CONTRAST: Final = """(least) => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext("2d", {willReadFrequently: true});
  const known = new Map();
  const bytes = (colour) => {
    if (!known.has(colour)) {
      pen.clearRect(0, 0, 1, 1);
      pen.fillStyle = colour;
      pen.fillRect(0, 0, 1, 1);
      known.set(colour, [...pen.getImageData(0, 0, 1, 1).data]);
    }
    return known.get(colour);
  };
  const over = (top, bottom) => {
    const share = top[3] / 255;
    return [0, 1, 2].map((i) => top[i] * share + bottom[i] * (1 - share)).concat(255);
  };
  const behind = (element) => {
    if (element === null) return bytes(getComputedStyle(document.documentElement).colorScheme === "dark"
      ? "rgb(18, 18, 18)" : "white");
    const own = bytes(getComputedStyle(element).backgroundColor);
    return own[3] === 255 ? own : over(own, behind(element.parentElement));
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((c) => {
      c /= 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || element.closest("option, title, script, :disabled")) continue;
    if (!element.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    const style = getComputedStyle(element);
    const back = behind(element);
    const front = over(bytes(element instanceof SVGElement ? style.fill : style.color), back);
    const [high, low] = [luminance(front), luminance(back)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < least) found.push(`${ratio.toFixed(2)}: ${element.tagName}.${element.getAttribute("class")} ` +
      node.textContent.trim().slice(0, 40));
  }
  return [...new Set(found)];
}"""

_TOO_WIDE: Final = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return [];
  const clipped = (element) => element !== null
    && (getComputedStyle(element).overflowX !== "visible" || clipped(element.parentElement));
  return [...document.body.querySelectorAll("*")]
    .filter((element) => element.getBoundingClientRect().right > width + 0.5 && !clipped(element.parentElement))
    .map((element) => `${element.tagName}.${element.getAttribute("class")} ${element.textContent.trim().slice(0, 30)}`)
    .concat(`${document.documentElement.scrollWidth} px wide`);
}"""

# One radio button of a group is in the tab order: the one that is checked.
_REACHABLE: Final = """() => {
  const all = document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']");
  const open = [...all].filter((element) => element.checkVisibility({visibilityProperty: true})
    && !element.matches(":disabled, [type=hidden], [tabindex='-1'], [type=radio]:not(:checked)"));
  open.forEach((element, number) => element.setAttribute("data-number", number));
  return open.map((element) => `${element.tagName} ${element.textContent.trim().slice(0, 30)}${element.name ?? ""}`);
}"""

# The focus is recorded in the page: a question after each key would take most of the time.
_RECORD_FOCUS: Final = """() => {
  window.focused = [];
  document.addEventListener("focusin", ({target}) => {
    const style = getComputedStyle(target);
    window.focused.push({
      number: Number(target.getAttribute("data-number") ?? -1),
      isVisible: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1,
      name: `${target.tagName}.${target.getAttribute("class")} ${target.textContent.trim().slice(0, 30)}`,
    });
  });
}"""

# Attributes and elements that no page of the console has, so that they can only come from an event.
_INJECTED: Final = """() => [...document.querySelectorAll(
  "script:not([src]), iframe, object, embed, base, style, marquee, img:not([src^='/console/']), [style]")]
  .concat([...document.querySelectorAll("*")].filter((element) =>
    [...element.attributes].some((attribute) => attribute.name.startsWith("on"))))
  .concat([...document.querySelectorAll("a[href]")].filter((element) =>
    new URL(element.getAttribute("href"), location.href).origin !== location.origin))
  .map((element) => element.outerHTML.slice(0, 200))"""


def windows(page: Page) -> Iterator[tuple[int, Scheme]]:
    """Show the page in windows of two widths and in two colour schemes, one after the other."""
    for width in (WIDE, NARROW):
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in get_args(Scheme):
            page.emulate_media(color_scheme=scheme)
            yield width, scheme


def low_contrast(page: Page) -> list[str]:
    """Text whose contrast is below the limit. Disabled controls are exempt, as in WCAG."""
    found: list[str] = page.evaluate(_LOW_CONTRAST, CONTRAST)
    return found


def too_wide(page: Page) -> list[str]:
    """Elements that make the page scroll to the side."""
    found: list[str] = page.evaluate(_TOO_WIDE)
    return found


def injected(page: Page) -> list[str]:
    """Elements and links that an event has put into the page."""
    found: list[str] = page.evaluate(_INJECTED)
    return found


def unreachable(page: Page) -> list[str]:
    """Controls that the Tab key does not reach, and controls that do not show that they have the focus."""
    controls: list[str] = page.evaluate(_REACHABLE)
    page.evaluate(_RECORD_FOCUS)
    missing = dict(enumerate(controls))
    hidden: list[str] = []
    for _ in range(_MOST_ROUNDS):
        for _ in range(len(controls) + 2):
            page.keyboard.press("Tab")
        for focused in page.evaluate("() => window.focused.splice(0)"):
            missing.pop(focused["number"], None)
            hidden += [] if focused["isVisible"] else [f"the focus of {focused['name']} is not visible"]
        if not missing:
            break
    return [*missing.values(), *hidden]
