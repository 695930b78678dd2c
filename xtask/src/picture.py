"""Draws the part of an HTML report that shows most: the table of latencies, and the plots of one handler.

Arguments: the browser, the page, the handler, the picture.
"""

import pathlib
import sys

from playwright.sync_api import sync_playwright

# As wide as a README is shown, with more pixels.
WIDTH = 920
SCALE = 1.5

# Room for the columns that stay.
DROPPED = ["backend", "TP50", "TP99.9"]
STYLE = "table { font-size: .7rem } th, td { padding: .2rem .45rem !important } h2 { margin-top: .5rem }"


def main():
    program, source, handler, picture = sys.argv[1:]
    with sync_playwright() as playwright:
        # Chromium's sandbox refuses to start as root; the page is our own.
        browser = playwright.chromium.launch(executable_path=program, chromium_sandbox=False)
        viewport = {"width": WIDTH, "height": 900}
        page = browser.new_page(
            viewport=viewport, device_scale_factor=SCALE, color_scheme="light"
        )
        page.goto(pathlib.Path(source).resolve().as_uri(), wait_until="load")
        # The warnings are above the table, and the other handlers below.
        page.evaluate(
            """([name, dropped]) => {
                 for (const section of document.querySelectorAll('main > section')) {
                   const title = section.querySelector('h2').textContent;
                   if (title !== 'Latencies' && title.split(' ')[0] !== name) section.remove();
                 }
                 document.querySelector('header').remove();
                 const rows = [...document.querySelectorAll('.sortable tr')];
                 [...rows[0].cells].forEach((head, column) => {
                   if (dropped.includes(head.textContent.split(' ')[0]))
                     rows.forEach(row => { row.cells[column].style.display = 'none' });
                 });
               }""",
            [handler, DROPPED],
        )
        page.add_style_tag(content=STYLE)
        page.locator("main").screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main()
