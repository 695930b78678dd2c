"""Opens pages in headless Chromium, uses them, and prints what was seen as JSON.

Arguments: the browser, a folder for screenshots, then pages.
"""

import json
import pathlib
import sys

from playwright.sync_api import sync_playwright

# The browser asks its maker for this and that unless told not to.
QUIET = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
]


def column(page, number):
    """The texts of one column of the first table."""
    cells = page.locator(f".sortable >> nth=0 >> tbody tr > :nth-child({number})")
    return cells.all_text_contents()


def colours(page):
    """Of the paper, and of the first curve."""
    return page.evaluate(
        """() => [getComputedStyle(document.body).backgroundColor,
             getComputedStyle(document.querySelector('svg [stroke="var(--series-1)"]')).stroke]"""
    )


def look(browser, path, shots):
    seen = {"console": [], "requests": []}
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(0)
    page.on("console", lambda message: seen["console"].append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen["console"].append(f"error: {error}"))
    address = path.resolve().as_uri()
    page.on("request", lambda request: seen["requests"].append(request.url))
    page.goto(address, wait_until="load")
    seen["requests"] = [url for url in seen["requests"] if url != address and url != "data:,"]
    seen["title"] = page.title()

    # A plot is drawn if its curves have an extent on the screen.
    seen["plots"] = page.evaluate(
        """() => [...document.querySelectorAll('figure svg')].map(svg => {
             const box = svg.getBoundingClientRect();
             const data = svg.querySelectorAll('[stroke="var(--series-1)"], [stroke="var(--series-2)"]');
             const drawn = [...data].some(part => {
               const size = part.getBoundingClientRect();
               return size.width > 1 && getComputedStyle(part).stroke !== 'none';
             });
             return {width: box.width, height: box.height, drawn};
           })"""
    )
    page.screenshot(path=str(shots / f"{path.stem}-light.png"), full_page=True)

    heads = page.locator(".sortable >> nth=0 >> thead th")
    count = heads.all_text_contents().index("count") + 1
    seen["before"] = column(page, count)
    heads.nth(count - 1).click()
    seen["descending"] = column(page, count)
    heads.nth(count - 1).press("Enter")
    seen["ascending"] = column(page, count)
    seen["sorted_by"] = heads.nth(count - 1).get_attribute("aria-sort")

    seen["light"] = colours(page)
    page.locator("#theme").click()
    seen["dark"] = colours(page)
    page.screenshot(path=str(shots / f"{path.stem}-dark.png"), full_page=True)
    page.locator("#theme").click()
    seen["light_again"] = colours(page)
    page.locator("#theme").click()
    page.emulate_media(media="print")
    seen["print"] = colours(page)
    seen["button_in_print"] = page.locator("#theme").is_visible()
    context.close()

    # What the system prefers is what is shown first; on a phone nothing sticks out.
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = context.new_page()
    page.set_default_timeout(0)
    page.goto(address, wait_until="load")
    seen["system_dark"] = colours(page)
    seen["narrow"] = page.evaluate(
        "() => [document.documentElement.scrollWidth, window.innerWidth]"
    )
    page.screenshot(path=str(shots / f"{path.stem}-narrow.png"), full_page=True)
    context.close()

    # Without scripts the page still shows its tables and plots, and call trees unfold.
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_default_timeout(0)
    page.goto(address, wait_until="load")
    seen["without_script"] = {
        "button": page.locator("#theme").is_visible(),
        "plots": page.locator("figure svg").count(),
        "rows": page.locator(".sortable >> nth=0 >> tbody tr").count(),
    }
    visible = "() => [...document.querySelectorAll('.branch b')].filter(b => b.checkVisibility()).length"
    seen["branches"] = [page.locator(".branch").count(), page.evaluate(visible)]
    closed = page.locator("details:not([open]) > summary")
    while closed.count():
        closed.first.click()
    seen["branches"].append(page.evaluate(visible))
    page.screenshot(path=str(shots / f"{path.stem}-unfolded.png"), full_page=True)
    context.close()
    return seen


def main():
    program, shots, *pages = sys.argv[1:]
    shots = pathlib.Path(shots)
    with sync_playwright() as playwright:
        # Chromium's sandbox refuses to start as root; the pages are our own.
        browser = playwright.chromium.launch(
            executable_path=program, args=QUIET, chromium_sandbox=False
        )
        seen = {page: look(browser, pathlib.Path(page), shots) for page in pages}
        browser.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
