"""Draws the part of an HTML report that shows most: the table of latencies, and the plots of one handler.

Arguments: the browser, the page, the handler, the picture.
"""

import pathlib
import sys

from playwright.sync_api import sync_playwright

# As wide as a README is shown.
WIDTH = 920


def main():
    program, source, handler, picture = sys.argv[1:]
    with sync_playwright() as playwright:
        # Chromium's sandbox refuses to start as root; the page is our own.
        browser = playwright.chromium.launch(executable_path=program, chromium_sandbox=False)
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        page.goto(pathlib.Path(source).resolve().as_uri(), wait_until="load")
        # The warnings are above the table, and the other handlers below.
        page.evaluate(
            """name => {
                 const of = section => section.querySelector('h2').textContent;
                 for (const section of document.querySelectorAll('main > section'))
                   if (of(section) !== 'Latencies' && of(section) !== name) section.remove();
                 document.querySelector('header').remove();
                 document.querySelector('main > section h2').style.marginTop = '.5rem';
               }""",
            handler,
        )
        page.locator("main").screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main()
