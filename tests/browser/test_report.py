"""The page in a real browser: sorting, switches, both colour schemes, keyboard; no errors, no requests."""

import shutil

import pytest

from bayesemble.apps.compare.results import Comparison, Result
from bayesemble.apps.report.comparison import comparison_page
from comparisons import tiny

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not here: pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not here: apt install chromium")


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("browser")
    comparison = tiny(folder, methods="map,deep_ensemble")
    failed = Result("laplace:subset=all", 0, "runs/laplace/seed-0", failure="it needs more memory")
    Comparison(comparison.command, comparison.data, [*comparison.results, failed]).write(folder)
    (folder / "report.html").write_text(comparison_page(folder), encoding="utf-8")
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser, page_file):
    """The page, in a window of its own; afterwards: it said nothing and asked for nothing."""
    said, asked = [], []
    window = browser.new_page(viewport={"width": 1280, "height": 900})
    window.on("console", lambda message: said.append(message.text))
    window.on("pageerror", lambda error: said.append(str(error)))
    window.on("request", lambda request: asked.append(request.url))
    window.goto(page_file.as_uri())
    yield window
    window.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("data:", page_file.as_uri()))] == []


def labels(page):
    return page.locator("table.scores tbody tr").evaluate_all("rows => rows.map(row => row.dataset.label)")


def values(page, score):
    cells = page.locator(f'table.scores td[data-score="{score}"]')
    return cells.evaluate_all("cells => cells.map(cell => Number(cell.dataset.value))")


def test_a_press_on_a_heading_sorts_and_a_second_one_turns_it_round(page):
    nll = page.locator("th", has=page.get_by_role("button", name="NLL"))
    assert nll.get_attribute("aria-sort") == "ascending"
    heading = page.get_by_role("button", name="Accuracy")
    column = page.locator("th", has=heading)
    heading.click()  # from the best down
    assert (column.get_attribute("aria-sort"), nll.get_attribute("aria-sort")) == ("descending", "none")
    assert values(page, "accuracy") == sorted(values(page, "accuracy"), reverse=True)
    heading.click()
    assert column.get_attribute("aria-sort") == "ascending"
    assert values(page, "accuracy") == sorted(values(page, "accuracy"))
    assert labels(page)[-1] == "laplace:subset=all"  # what failed stays last
    page.get_by_role("button", name="NLL").click()
    assert values(page, "nll") == sorted(values(page, "nll"))


def test_sorting_by_name_with_the_keyboard(page):
    heading = page.get_by_role("button", name="Method")
    heading.focus()
    page.keyboard.press("Enter")
    assert labels(page) == ["deep_ensemble", "laplace:subset=all", "map"]
    page.keyboard.press("Space")
    assert labels(page) == ["map", "laplace:subset=all", "deep_ensemble"]


def visible(page, label):
    """How many parts of figures take room on the page, of one method."""
    script = """(parts, label) => parts.filter(one => one.dataset.method === label).filter(one => {
        const box = one.getBoundingClientRect();
        return box.width + box.height > 0;
    }).length"""
    return page.locator(".switched [data-method]").evaluate_all(script, label)


def test_a_switch_hides_a_method_in_all_figures_at_once(page):
    before = {label: visible(page, label) for label in ("map", "deep_ensemble")}
    assert min(before.values()) > 10
    box = page.get_by_role("checkbox", name="deep_ensemble")
    box.uncheck()
    assert visible(page, "deep_ensemble") == 0
    assert visible(page, "map") == before["map"]
    box.focus()
    page.keyboard.press("Space")
    assert {label: visible(page, label) for label in before} == before
    page.get_by_role("button", name="none").click()
    assert [visible(page, label) for label in before] == [0, 0]
    page.get_by_role("button", name="all", exact=True).click()
    assert {label: visible(page, label) for label in before} == before
    assert page.get_by_role("checkbox").count() == 2


def test_resting_on_a_switch_dims_the_others_until_it_is_left(page):
    dimmed = page.locator("figure svg .dim")
    page.get_by_role("checkbox", name="map").hover()
    methods = set(dimmed.evaluate_all("parts => parts.map(part => part.dataset.method)"))
    assert methods == {"deep_ensemble"}
    page.get_by_role("checkbox", name="map").uncheck()  # what is hidden dims nothing
    assert dimmed.count() == 0
    page.get_by_role("checkbox", name="deep_ensemble").hover()
    page.mouse.move(0, 0)
    assert dimmed.count() == 0


def test_a_method_is_opened_for_its_settings(page):
    setting = page.locator("details.method", has_text="deep_ensemble").get_by_role("rowheader", name="learning_rate")
    assert not setting.is_visible()
    page.locator("table.scores").get_by_role("link", name="deep_ensemble").click()
    setting.wait_for(state="visible")
    page.locator("details.method summary", has_text="laplace").click()
    assert page.locator("details.method p.failure", has_text="it needs more memory").is_visible()


def paper(page):
    return page.evaluate("getComputedStyle(document.documentElement).backgroundColor")


def ink(page):
    return page.locator("figure svg text").first.evaluate("text => getComputedStyle(text).fill")


def test_light_and_dark(page):
    page.emulate_media(color_scheme="light")
    light = paper(page), ink(page)
    page.emulate_media(color_scheme="dark")
    dark = paper(page), ink(page)
    assert light != dark
    assert light[0] == "rgb(253, 253, 252)"
    assert dark[0] == "rgb(20, 24, 27)"
    page.get_by_role("button", name="Switch between light and dark").click()
    assert (paper(page), ink(page)) == light
    page.get_by_role("button", name="Switch between light and dark").click()
    assert (paper(page), ink(page)) == dark


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_is_wider_than_the_window(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_figures_and_controls_have_names_for_screen_readers(page):
    assert page.locator("[role=img]:not([aria-label])").count() == 0
    names = page.get_by_role("button").evaluate_all("all => all.map(one => one.ariaLabel || one.textContent.trim())")
    assert all(names)
    assert page.locator("img:not([alt])").count() == 0
    assert page.locator("h1").count() == 1
    assert page.get_by_role("group", name="Methods shown in the figures").count() == 1
