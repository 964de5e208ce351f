"""Rewrite the generated blocks of all pages, and name the cells that a person has to write."""

import sys

from tests.reference.pages import PAGES, ROOT, render, unwritten


def main() -> int:
    missing: list[str] = []
    for page in PAGES:
        text = page.read_text()
        rendered = render(text)
        if rendered != text:
            page.write_text(rendered)
            sys.stdout.write(f"{page.relative_to(ROOT)}: updated\n")
        missing += [f"{page.relative_to(ROOT)}: write the last cell of the row {row}\n" for row in unwritten(rendered)]
    sys.stderr.write("".join(missing))
    return 1 if missing else 0


sys.exit(main())
