"""The report in Chromium: what the script adds, and that the page is whole without it."""

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedalloy.report.html import render

sys.path.insert(0, str(Path(__file__).parent))  # for browser, which is no test

from browser import MISSING, Browser

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

AMP = "#curves-amp .axis:not([hidden]) .one .field"
NAME = '=1+1<img src=x onerror="document.title=1">'
# The texts that stick out of their card.
OUTSIDE = """
    return [...document.querySelectorAll(".card")].flatMap((card) => {
      const { left, right } = card.getBoundingClientRect();
      return [...card.querySelectorAll(".field span, .names span, h3, button, select")].filter((part) => {
        const box = part.getBoundingClientRect();
        return box.width && (box.left < left - 1 || box.right > right + 1);
      }).map((part) => part.textContent);
    });
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    window = Browser(tmp_path_factory.mktemp("browser"))
    yield window
    window.close()


@pytest.fixture(scope="module")
def few(comparison, tmp_path_factory):
    file = tmp_path_factory.mktemp("few") / "few.html"
    file.write_text(render(comparison, title="Toy"))
    return file


@pytest.fixture(scope="module")
def many(make_run, tmp_path_factory):
    """Eight methods, one of which has a hostile name."""
    names = [*(f"Method {k}" for k in range(7)), NAME]
    runs = [make_run(label=name, views={"oca": [[0.2, 0.4], [0.6, 0.5 + k / 20]]}) for k, name in enumerate(names)]
    file = tmp_path_factory.mktemp("many") / "many.html"
    file.write_text(render(runs, title=NAME))
    return file


def texts(browser, css):
    return browser.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent.trim())", css)


def visible(browser, css):
    """How many of the elements are rendered, with some size."""
    script = "return [...document.querySelectorAll(arguments[0])].filter((e) => e.getClientRects().length).length"
    return browser.run(script, css)


def view_of(browser):
    return browser.run("return document.querySelector(arguments[0]).getAttribute('viewBox')", f"{AMP} svg")


def brightness(browser):
    return float(np.asarray(Image.open(io.BytesIO(browser.picture())).convert("L")).mean())


def test_nothing_is_requested_and_nothing_fails(browser, few, many):
    for file in (few, many):
        browser.open(file)
        assert browser.run("return performance.getEntriesByType('resource').length") == 0
        assert browser.said() == []
        assert browser.run("return document.title") != "1"  # what the hostile name would set


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_never_wider_than_the_screen(browser, few, many, width):
    for file in (few, many):
        browser.open(file, width=width)
        assert browser.run("return document.documentElement.scrollWidth") <= width
        assert browser.run(OUTSIDE) == []


def test_without_scripts_pictures_and_tables_are_there_and_no_dead_button(browser, few, many):
    for file, plot in ((few, ".one"), (many, ".many")):
        browser.open(file, scripts=False)
        browser.command("Emulation.setScriptExecutionDisabled", value=False)  # only now, to look at the page
        assert visible(browser, "button") == 0
        assert visible(browser, f"#curves-amp {plot} svg") >= 2  # over the rounds and over bytes
        assert visible(browser, "table") > 5


def test_charts_follow_the_scheme_and_the_switch(browser, few):
    browser.open(few)
    light = brightness(browser)
    browser.open(few, dark=True)
    dark = brightness(browser)
    assert light > 200
    assert dark < 80
    colour = "return getComputedStyle(document.querySelector('#curves-amp .one path.line')).stroke"
    before = browser.run(colour)
    browser.click(".themes button:nth-child(2)")
    assert abs(brightness(browser) - light) < 5
    assert browser.run(colour) != before
    pressed = "return [...document.querySelectorAll('.themes button')].map((e) => e.getAttribute('aria-pressed'))"
    assert browser.run(pressed) == ["false", "true", "false"]


def test_a_series_is_switched_in_all_charts(browser, few):
    browser.open(few)
    lines = ".one g[data-series='0'] path.line"
    before = visible(browser, lines)
    assert before > 2
    browser.click("#curves-wlp .legend li:first-child button")
    assert visible(browser, lines) == 0
    assert visible(browser, ".one g[data-series='1'] path.line") == before
    pressed = "return document.querySelector('#curves-amp .legend button').getAttribute('aria-pressed')"
    assert browser.run(pressed) == "false"
    browser.run("document.querySelector('#curves-amp .legend button').focus()")
    browser.press("\ue007")  # Enter
    assert visible(browser, lines) == before


def test_the_pointer_finds_the_nearest_value(browser, few):
    browser.open(few)
    browser.point(AMP, (0.46, -0.46))  # upper right: the best method in the last round
    assert texts(browser, ".tip b") == ["Centralised"]
    assert re.search(r"Round: 2\. AMP %: 90\.00", texts(browser, ".tip")[0])


def test_keys_go_along_a_curve_and_zoom(browser, few):
    browser.open(few)
    browser.run("document.querySelector(arguments[0]).focus()", AMP)
    browser.press("\ue014", "\ue014")  # right
    assert "Round: 2. AMP %: 60.00" in texts(browser, ".tip")[0]
    browser.press("\ue015")  # down
    assert texts(browser, ".tip b") == ["FedAvg (OCA)"]
    whole = view_of(browser)
    browser.press("+")
    assert float(view_of(browser).split()[2]) < float(whole.split()[2])
    browser.press("0")
    assert view_of(browser) == whole.replace("  ", " ")


def test_dragging_zooms_and_the_ticks_follow(browser, few):
    browser.open(few)
    whole, ticks = view_of(browser), texts(browser, f"{AMP} span.y")
    browser.point(AMP, (-0.3, -0.3), (0.1, 0.1), drag=True)
    _, _, width, height = map(float, view_of(browser).split())
    _, _, all_width, all_height = map(float, whole.split())
    assert width == pytest.approx(0.4 * all_width, rel=0.02)
    assert height == pytest.approx(0.4 * all_height, rel=0.02)
    assert texts(browser, f"{AMP} span.y") != ticks
    browser.click("#curves-amp [aria-label^='Reset']")
    assert [float(x) for x in view_of(browser).split()] == [float(x) for x in whole.split()]
    assert texts(browser, f"{AMP} span.y") == ticks


def test_the_horizontal_axis_is_chosen(browser, few):
    browser.open(few)
    assert texts(browser, "#curves-amp option") == [
        *("Round", "Bytes sent so far, both ways", "FLOPs so far, clients and server", "Seconds so far, training only"),
    ]
    browser.run("document.querySelector('#curves-amp select').focus()")
    browser.press("\ue015")  # down
    assert visible(browser, "#curves-amp .one svg[role=img]") == 1
    browser.point(AMP, (0.46, 0.0))
    assert re.search(r"Bytes sent so far, both ways: \d", texts(browser, ".tip")[0])


def test_many_series_have_panels_and_one_chart_on_demand(browser, many):
    browser.open(many)
    assert visible(browser, "#curves-amp .axis:not([hidden]) .panel") == 8
    assert visible(browser, "#curves-amp .one") == 0
    browser.click("#curves-amp .tools button[aria-pressed]")
    assert visible(browser, "#curves-amp .one") == 1
    assert visible(browser, "#curves-amp .panel") == 0


def test_tables_are_sorted_by_numbers_and_say_so(browser, few):
    browser.open(few)
    table = "table[data-title='Comparison of methods']"
    amp = f"{table} thead th:nth-child(3)"
    assert texts(browser, f"{amp}[aria-sort]") == []
    browser.click(f"{amp} button")
    column = [float(text.split()[0]) for text in texts(browser, f"{table} tbody td:nth-child(3)")]
    assert column == sorted(column)
    browser.run("document.querySelector(arguments[0]).focus()", f"{amp} button")
    browser.press("\ue007")
    column = [float(text.split()[0]) for text in texts(browser, f"{table} tbody td:nth-child(3)")]
    assert column == sorted(column, reverse=True)
    assert browser.run("return document.querySelector(arguments[0]).getAttribute('aria-sort')", amp) == "descending"
    assert browser.run("return document.querySelectorAll('[aria-sort]').length") == 1


def test_tables_and_curves_are_saved_as_csv_without_formulas(browser, many):
    browser.open(many)
    browser.click("[aria-label='Download as CSV: Comparison of methods']")
    lines = browser.downloaded("comparison-of-methods.csv").splitlines()
    assert lines[0].startswith("Method,View,AMP %")
    assert len(lines) == 9
    assert lines[-1].startswith("\"'=1+1<img")
    assert not [line for line in lines if line.startswith(("=", '"='))]
    browser.click("[aria-label='Download the curves as CSV: AMP %']")
    lines = browser.downloaded("amp-by-round.csv").splitlines()
    assert lines[0] == "Series,Round,AMP %,Standard deviation"
    assert lines[1] == "Method 0 (OCA),1,30,"
    assert len(lines) == 1 + 8 * 2
    cells = browser.run("return [...document.querySelectorAll('th')].some((e) => e.querySelector('img'))")
    assert not cells
