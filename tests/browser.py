"""A page in a real browser, and what axe finds on it."""

import shutil

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture
def browser():
    if BROWSER is None:
        pytest.skip("no chromium on this machine: the page is not tried in a browser")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        tab = opened.new_page()
        tab.set_default_timeout(60_000)
        said = []
        tab.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: said.append(str(error)))
        yield tab
        assert said == []
        opened.close()


def violations(tab):
    """What axe finds serious on a page; the test is skipped where axe is not installed."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(tab).response["violations"]
    return [each for each in found if each["impact"] in ("serious", "critical")]
