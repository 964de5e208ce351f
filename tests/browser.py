"""Chromium for tests of the console, and screenshots: `python -m tests.browser URL --token TOKEN --out FILE`."""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, TypeAlias

from playwright.sync_api import Browser, BrowserContext, Page, Playwright, StorageState, sync_playwright

from tests.debian import unpacked

Scheme: TypeAlias = Literal["light", "dark"]

PROGRAMS: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
ARGUMENTS: Final = ("--no-sandbox", "--disable-dev-shm-usage")
INSTALL: Final = "apt-get install chromium-headless-shell"
_PATIENCE: Final = 15_000  # milliseconds for each step in a page
_PACKAGE: Final = "chromium-headless-shell"
_FONT: Final = "fonts-dejavu-core"
_FONTS: Final = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir>{root}/usr/share/fonts</dir>
  <dir>/usr/share/fonts</dir>
  <cachedir>{root}/font-cache</cachedir>
  <alias><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""


class NoBrowser(Exception):
    """There is no Chromium on this machine, and the Debian package cannot be downloaded."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium. Raises NoBrowser if there is none."""
    with sync_playwright() as playwright:
        program, environment = _find(playwright)
        browser = playwright.chromium.launch(
            executable_path=program, args=list(ARGUMENTS), env={**os.environ, **environment}
        )
        try:
            yield browser
        finally:
            browser.close()


def _find(playwright: Playwright) -> tuple[Path, Mapping[str, str]]:
    """Return the program and its environment: the browser of Playwright or of the system, or the Debian package."""
    installed = [playwright.chromium.executable_path, *(shutil.which(name) for name in PROGRAMS)]
    for path in installed:
        if path and Path(path).exists():
            return Path(path), {}
    root = unpacked(_PACKAGE, _FONT)
    if root is None:
        raise NoBrowser
    fonts = root / "fonts.conf"
    fonts.write_text(_FONTS.format(root=root))
    libraries = {str(path.parent) for path in root.rglob("*.so*")}
    environment = {"LD_LIBRARY_PATH": ":".join(sorted(libraries)), "FONTCONFIG_FILE": str(fonts)}
    return root / "usr" / "lib" / "chromium" / _PACKAGE, environment


def window(
    browser: Browser,
    *,
    width: int = 1400,
    height: int = 900,
    scheme: Scheme = "light",
    java_script: bool = True,
    session: StorageState | None = None,
) -> BrowserContext:
    """Open a window with the cookies of a session. The language and the time zone do not depend on the machine."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        java_script_enabled=java_script,
        locale="en-GB",
        timezone_id="UTC",
        reduced_motion="reduce",
        storage_state=session,
    )
    context.set_default_timeout(_PATIENCE)
    return context


def watch(page: Page) -> list[str]:
    """Return a list to which the errors of the page are added: exceptions, violations of the content security policy,
    responses that could not be loaded, and every other message of the browser's console."""
    problems: list[str] = []
    page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: problems.append(f"exception: {error}"))
    return problems


def log_in(page: Page, url: str, token: str, user: str = "Ada") -> None:
    """Open a page of the console, and log in if the console asks for the token."""
    page.goto(url)
    field = page.locator("#token")
    page.locator("#token, header.bar").first.wait_for()
    if field.count():
        field.fill(token)
        page.locator("#user").fill(user)
        page.get_by_role("button", name="Log in").click()
        page.locator("header.bar").wait_for()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.browser", description="Take a screenshot of a page.")
    parser.add_argument("url")
    parser.add_argument("--token", default="", help="the token of the console")
    parser.add_argument("--out", default="page.png", help="the PNG file")
    parser.add_argument("--width", type=int, default=1400)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--full", action="store_true", help="the whole page, not only the window")
    parser.add_argument("--no-script", action="store_true", help="without JavaScript")
    given = parser.parse_args()
    scheme: Scheme = "dark" if given.dark else "light"
    with (
        chromium() as browser,
        window(
            browser, width=given.width, height=given.height, scheme=scheme, java_script=not given.no_script
        ) as context,
    ):
        page = context.new_page()
        problems = watch(page)
        log_in(page, given.url, given.token) if given.token else page.goto(given.url)
        page.screenshot(path=given.out, full_page=given.full)
        sys.stderr.writelines(f"{problem}\n" for problem in problems)


if __name__ == "__main__":
    main()
