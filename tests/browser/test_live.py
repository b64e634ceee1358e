"""The live page in a real browser: traffic, alarms, odd rows, a row to try, colour schemes, narrow windows, a token."""

import shutil
import threading
import time

import pytest

from bayesemble.apps.serve.options import Options
from bayesemble.apps.serve.registry import Registry
from bayesemble.apps.serve.web.server import make_server
from served_tables import draw_rows, make_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not here: pip install playwright")
httpx = pytest.importorskip("httpx", reason="httpx is not here")
pytest.importorskip("fastapi", reason="the extra serve is not here")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not here: apt install chromium")


def begin(folder, **more):
    """A server in a thread: its address, and how to end it."""
    registry = Registry([f"houses={folder}"], Options(port=0, **more))
    ready = []
    server = make_server(registry, registry.options, lambda address, _: ready.append(address))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not ready:
        time.sleep(0.01)

    def end():
        server.should_exit = True
        thread.join(20)

    return ready[0], end


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("live"), "price").folder


@pytest.fixture(scope="module")
def address(run):
    """A service that has seen rows of its world, then of another one, and a few odd ones."""
    found, end = begin(run, max_risk=0.5, tolerance=1e-3)
    rows = draw_rows(500, 70, shift=2.0)
    odd = [row | {"city": "<b>Atlantis</b>"} for row in rows[:3]]
    for part in (rows, odd):
        assert httpx.post(f"{found}/predict", json={"rows": part}).status_code == 200
    yield found
    end()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser, address):
    """The page in a window of its own; afterwards: it said nothing, and asked nobody but its service."""
    said, asked = [], []
    window = browser.new_page(viewport={"width": 1280, "height": 900})
    window.on("console", lambda message: said.append(message.text))
    window.on("pageerror", lambda error: said.append(str(error)))
    window.on("request", lambda request: asked.append(request.url))
    window.goto(address)
    window.wait_for_selector("form.try")
    yield window
    window.close()
    assert [words for words in said if "status of 422" not in words] == []  # the browser itself tells of a refusal
    assert [url for url in asked if not url.startswith(("data:", address))] == []


def test_alarms_traffic_and_odd_rows_are_shown(page):
    assert page.locator(".verdict.alarm").get_by_text("The model may no longer know its world").is_visible()
    assert page.get_by_text("column 'width' is higher than in training").is_visible()
    assert page.locator("dt", has_text="rows answered").locator("xpath=following-sibling::dd").inner_text() == "503"
    odd = page.locator("table.plain tbody tr")
    assert "<b>Atlantis</b>" in odd.first.inner_text()  # as a text
    assert page.locator("table.plain b").count() == 0
    assert page.locator("svg.chart path.now").count() == page.locator("svg.chart path.before").count() == 2


def test_a_row_is_tried_and_a_wrong_one_is_told(page):
    form = page.get_by_role("form", name="Try a row of houses")
    for name, value in {"size": "100", "width": "0", "city": "Rome", "garden": "true", "day": "2020-05-01"}.items():
        form.get_by_label(name, exact=True).fill(value)
    form.get_by_role("button", name="Predict").click()
    answer = page.locator(".answer")
    answer.locator(".big").wait_for()
    assert 0 < float(answer.locator(".big").inner_text().replace(",", "")) < 1_000
    assert "It abstains" in answer.inner_text()  # nothing is as exact as was asked for
    form.get_by_label("size", exact=True).fill("much")
    with page.expect_response("**/predict") as refused:
        form.get_by_role("button", name="Predict").click()
    assert refused.value.status == 422
    answer.locator(".warned", has_text="field 'size'").wait_for()


def test_the_page_follows_what_comes_in(page, address):
    before = page.locator("dt", has_text="rows answered").locator("xpath=following-sibling::dd").inner_text()
    httpx.post(f"{address}/predict", json={"rows": draw_rows(7, 71)})
    page.wait_for_function(
        "before => [...document.querySelectorAll('dt')].find(one => one.textContent === 'rows answered')"
        ".nextElementSibling.textContent !== before",
        arg=before,
        timeout=8_000,
    )


def test_light_and_dark_and_no_window_is_too_narrow(page):
    def paper():
        return page.evaluate("getComputedStyle(document.documentElement).backgroundColor")

    page.emulate_media(color_scheme="light")
    assert paper() == "rgb(253, 253, 252)"
    page.emulate_media(color_scheme="dark")
    assert paper() == "rgb(20, 24, 27)"
    page.get_by_role("button", name="Switch between light and dark").click()
    assert paper() == "rgb(253, 253, 252)"
    for width in (390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        heights = page.locator(".chart text").evaluate_all("all => all.map(one => one.getBoundingClientRect().height)")
        cut = page.locator(".chart text").evaluate_all(
            "all => all.filter(one => { const own = one.getBoundingClientRect(),"
            " whole = one.closest('svg').getBoundingClientRect();"
            " return own.left < whole.left || own.right > whole.right || own.bottom > whole.bottom; }).length"
        )
        assert cut == 0
        assert min(heights) > 11  # of a line; its signs are about three quarters of it
        lines = page.locator("table.plain td:nth-child(2)").evaluate_all(
            "all => all.map(one => { const r = document.createRange(); r.selectNodeContents(one);"
            " return new Set([...r.getClientRects()].map(line => line.top)).size; })"
        )
        assert set(lines) == {1}  # an id, to be copied, is not broken


def test_figures_and_controls_have_names(page):
    assert page.locator("[role=img]:not([aria-label])").count() == 0
    assert page.locator("h1").count() == 1
    unnamed = page.locator("form.try input").evaluate_all("all => all.filter(one => !one.labels.length).length")
    assert unnamed == 0


def test_the_description_is_a_page_too(page, address):
    page.goto(f"{address}/docs")
    page.locator("summary", has_text="POST /predict").click()
    assert page.locator("details[open] pre").first.is_visible()


def test_where_a_token_is_asked_for_the_page_asks_for_it(browser, run):
    address, end = begin(run, token="open-sesame")
    window = browser.new_page()
    window.goto(address)
    window.get_by_label("This service asks for a token").fill("open-sesame")
    window.get_by_role("button", name="Use it").click()
    window.wait_for_selector("form.try")
    assert not window.get_by_label("This service asks for a token").is_visible()
    window.close()
    end()
