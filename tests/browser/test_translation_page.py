"""The server's translation page in Chromium: what a user does, and what the page shows."""

from __future__ import annotations

import json
import threading

import pytest

from mnmt_jax.serving.api_keys import ApiKeys
from mnmt_jax.serving.database import Database
from tests.browser.chromium import find_chromium
from tests.unit.colours import contrast, hexadecimal
from tests.unit.made_server import LANGUAGES, MadeJob, made_service, serving
from tests.waiting import wait_until

if find_chromium() is None:
    pytest.skip("no Chromium (apt-get install chromium)", allow_module_level=True)

from tests.browser.driver import Browser

OUTPUT = "document.getElementById('translation').textContent"
SENTENCES = [
    {"source": "One.", "translation": "Eins.", "score": -0.1, "off_target": False},
    {
        "source": "Two.",
        "translation": "Two.",
        "score": -1.5,
        "off_target": True,
        "language": "zh_Hant",
    },
    {"source": "3 or 4", "translation": "3 3 3", "repeated": True, "missing_numbers": ["4"]},
]
ANSWER = {
    "translatedText": "Eins. Two.\n3 3 3",
    "checks": {"sentences": SENTENCES},
    "retried": "contrast",
    "alternatives": ["Einmal.", "Ein " + "langes" * 30],
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture
def job():
    return MadeJob()


@pytest.fixture
def page(browser, job):
    """The page of a new server, with the focus in the field for the text."""
    with serving(made_service(job, wait_milliseconds=0)) as url:
        browser.resize(1200, 900)
        browser.prefer("light")
        load(browser, url)
        browser.evaluate("localStorage.clear()")
        load(browser, url)
        browser.choose("#target", "de")
        browser.url = url
        yield browser


def load(browser: Browser, url: str) -> None:
    browser.events.clear()
    browser.open(f"{url}/")
    browser.wait("document.activeElement.id === 'text'")


def text_of(page: Browser, selector: str) -> str:
    """Return the visible text of an element."""
    return page.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")


def is_shown(page: Browser, selector: str) -> bool:
    return page.evaluate(f"document.querySelector({json.dumps(selector)}).offsetHeight > 0")


def showing(text: str) -> str:
    return f"{OUTPUT} === {json.dumps(text)}"


def test_text_is_translated_while_it_is_typed_but_not_at_every_key(page):
    page.type("Good morning to all.", seconds=0.03)
    page.wait(showing("[de] Good morning to all."))
    assert 0 < len(sent(page)) < 5
    page.wait("document.getElementById('source').options[0].text.includes('English (detected,')")
    assert text_of(page, "#count") == "20 / 100,000"
    page.click("#clear")
    page.wait(showing(""))
    assert text_of(page, "#count").startswith("0 /")


def test_a_slow_answer_is_announced_and_a_stale_one_never_shown(page, job):
    slow = threading.Event()
    job.respond = lambda text: (slow.wait(60) and "late") if text == "Slow." else f"[{text}]"
    page.evaluate(
        "window.shown = []; new MutationObserver(() => shown.push(translation.textContent))"
        ".observe(translation, {childList: true, characterData: true, subtree: true})"
    )
    page.type("Slow.")
    page.press("Enter", ctrl=True)
    wait_until(lambda: job.batches)
    page.wait("document.getElementById('status').textContent === 'Translating…'")
    assert page.evaluate("document.getElementById('translation').getAttribute('aria-busy')")
    page.type(" Fast.")
    page.press("Enter", ctrl=True)
    wait_until(lambda: len(sent(page)) > 1)
    slow.set()
    page.wait(f"{OUTPUT}.includes('[Fast.]')")
    assert text_of(page, "#status") == ""
    assert "late" not in page.evaluate("shown")


def sent(page: Browser) -> list[str]:
    """Return the texts that the page has sent."""
    page.evaluate("0")
    requests = [
        event["params"]["request"]
        for event in page.events
        if event.get("method") == "Network.requestWillBeSent"
    ]
    return [json.loads(one["postData"])["q"] for one in requests if "postData" in one]


def test_languages_are_switched_and_texts_with_them(page):
    page.choose("#source", "en")
    page.type("Good.")
    page.wait(showing("[de] Good."))
    page.click("#swap")
    page.wait(showing("[en] [de] Good."))
    value = "document.getElementById('{}').value".format
    assert page.evaluate(value("source")) == "de" and page.evaluate(value("target")) == "en"
    assert page.evaluate(value("text")) == "[de] Good."
    page.choose("#source", "en")  # the target makes way
    assert page.evaluate(value("target")) == "de"
    assert page.evaluate("translation.lang + text.lang") == "deen"
    load(page, page.url)  # remembered
    assert page.evaluate(value("source")) == "en" and page.evaluate(value("target")) == "de"


def test_a_detected_language_is_switched(page):
    page.type("Das ist ein guter Satz auf Deutsch.")
    page.choose("#target", "fr")
    page.wait(f"{OUTPUT}.startsWith('[fr]') && detected !== null")
    page.click("#swap")
    page.wait(f"{OUTPUT}.startsWith('[de] [fr]')")
    assert page.evaluate("source.value + target.value") == "frde"


def test_an_error_is_one_line_with_a_retry(page, job):
    page.type("Fail.")
    page.wait("!document.getElementById('error').hidden")
    assert text_of(page, "#message") == "The translation failed."
    assert page.evaluate("document.querySelector('#error').offsetHeight") < 70
    page.call(
        "Network.emulateNetworkConditions",
        offline=True,
        latency=0,
        downloadThroughput=-1,
        uploadThroughput=-1,
    )
    page.type(" Works.")
    page.wait("document.getElementById('message').textContent.includes('cannot be reached')")
    page.call(
        "Network.emulateNetworkConditions",
        offline=False,
        latency=0,
        downloadThroughput=-1,
        uploadThroughput=-1,
    )
    page.evaluate("text.value = 'Works.'")
    page.click("#retry")
    page.wait(showing("[de] Works."))
    assert not is_shown(page, "#error")


def test_text_that_is_too_long_is_not_sent(page):
    page.evaluate("settings.charLimit = 5; text.value = 'Too long.'; typed()")
    page.wait("!document.getElementById('error').hidden")
    assert text_of(page, "#message") == "The text is longer than 5 characters."
    assert not is_shown(page, "#retry") and sent(page) == []


def test_alternatives_replace_the_translation(page):
    page.type("Good.")
    page.wait("document.querySelectorAll('#alternatives button').length === 1")
    page.click("#alternatives button")
    assert page.evaluate(OUTPUT) == "other"
    assert text_of(page, "#alternatives button") == "[de] Good."


def test_a_sentence_in_the_wrong_language_is_marked(page, job):
    copied = "The committee will meet on Thursday afternoon."
    job.respond = lambda text: copied if text == copied else "Der Antrag wurde heute angenommen."
    page.choose("#source", "en")
    page.type(f"The motion was carried today. {copied}")
    page.wait("!byId('warnings').hidden")
    marked = "[...document.querySelectorAll('.suspect')].map(node => node.textContent)"
    assert page.evaluate(marked) == [copied]
    warning = text_of(page, "#warnings ul")
    assert "seems to be English, not German" in warning and "is a copy of the source" in warning
    page.click("#confidence summary")
    confidence = text_of(page, "#confidence ol")
    assert confidence.count(" %") == 2 and confidence.endswith(copied)


def test_sentences_that_fail_checks_are_marked(page):
    page.evaluate(f"showAnswer({json.dumps(ANSWER)})")
    marked = "[...document.querySelectorAll('.suspect')].map(node => node.textContent)"
    assert page.evaluate(marked) == ["Two.", "3 3 3"]
    assert page.evaluate(OUTPUT) == ANSWER["translatedText"]
    assert text_of(page, "#warnings ul").split("\n") == [
        "Two. seems to be Traditional Chinese, not German.",
        "3 3 3 repeats itself; lacks 4.",
    ]
    assert text_of(page, "#status") == "Translated again after a failed check"
    page.click("#confidence summary")
    assert text_of(page, "#confidence ol").split() == ["90", "%", "Eins.", "22", "%", "Two."]


def test_a_glossary_is_used(page):
    page.choose("#source", "en")
    page.type("A file.")
    page.wait(showing("[de] A file."))
    page.click("#glossary-box summary")
    page.click("#glossary")
    page.type("file = Datei")
    page.wait(showing("[de] A Datei."))
    page.evaluate("showAnswer({translatedText: 'Eins', missingTerms: ['Datei', 'Haus']})")
    assert text_of(page, "#warnings li") == (
        "The translation lacks terms of the glossary: Datei, Haus."
    )


def test_a_glossary_is_read_by_lines(page):
    lines = "Haus = maison\n\nno term\n__proto__ = x\na = b = c | !d\n=d\nHaus = logis\n"
    page.evaluate(f"document.getElementById('glossary').value = {json.dumps(lines)}")
    terms = page.evaluate("JSON.stringify(glossary())")
    assert json.loads(terms) == {
        "Haus": ["maison", "logis"],
        "__proto__": ["x"],
        "a": ["b = c", "!d"],
    }
    assert (
        page.evaluate("document.getElementById('glossary-note').textContent")
        == "Line 3, 6: write source = target. Line 7: added to the targets of the same term above."
    )


def test_texts_have_their_own_direction_in_every_list(page):
    page.evaluate(
        "showAnswer({translatedText: 'שלום עולם.', missingTerms: ['שלום'], "
        "checks: {sentences: [{translation: 'שלום עולם.', score: -1, copied: true}]}})"
    )
    for selector in ("#warnings q", "#warnings bdi", "#confidence li > span + span"):
        query = f"document.querySelector('{selector}')"
        assert page.evaluate(f"getComputedStyle({query}).direction") == "rtl", selector


def test_a_document_is_translated_with_progress_and_downloaded(page, job, tmp_path):
    assert ".docx" in text_of(page, "#formats")
    path = tmp_path / "my notes.txt"
    path.write_text("Good morning.\n\nGood night.\n", encoding="utf-8")
    page.choose("#source", "en")
    job.gate.clear()
    page.choose_files("#file", [path])
    page.wait("byId('upload-status').textContent === 'Translating my notes.txt'")
    assert is_shown(page, "#progress") and not is_shown(page, "#download")
    page.choose("#target", "fr")  # for what comes next
    job.gate.set()
    page.wait("!byId('download').hidden")
    assert text_of(page, "#download a") == "Download my notes.de.txt"
    assert not is_shown(page, "#progress")
    assert page.evaluate("document.activeElement.textContent") == "Download my notes.de.txt"
    text = page.evaluate("fetch(document.querySelector('#download a').href).then(a => a.text())")
    assert text == "[de] Good morning.\n\n[de] Good night.\n"


def test_a_document_is_translated_with_the_glossary(page, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("A file.\n", encoding="utf-8")
    page.choose("#source", "en")
    page.evaluate("byId('glossary').value = 'file = Datei'")
    page.choose_files("#file", [path])
    page.wait("!byId('download').hidden")
    text = page.evaluate("fetch(document.querySelector('#download a').href).then(a => a.text())")
    assert text == "[de] A Datei.\n" and text_of(page, "#download ul") == ""
    page.evaluate("offerDownload({translatedFileUrl: '/a', missingTerms: ['Haus']}, 'a.txt', 'de')")
    assert text_of(page, "#download li") == "The translation lacks terms of the glossary: Haus."


DROP = """(() => {
    const data = new DataTransfer();
    data.items.add(new File([NAMED.text], NAMED.name));
    const options = {dataTransfer: data, bubbles: true, cancelable: true};
    byId('drop').dispatchEvent(new DragEvent('dragover', options));
    const isOver = byId('drop').classList.contains('over');
    byId('drop').dispatchEvent(new DragEvent('drop', options));
    return isOver;
})()"""


def test_a_document_that_is_dropped_and_refused_is_one_line_with_a_retry(page):
    dropped = json.dumps({"name": "table.xlsx", "text": "a"})
    assert page.evaluate(DROP.replace("NAMED", dropped))
    page.wait("!byId('error').hidden")
    message = text_of(page, "#message")
    assert message.lower().count("table.xlsx: ") == 1 and message.endswith(".tmx.")
    assert is_shown(page, "#retry")
    page.choose("#source", "en")
    dropped = json.dumps({"name": "table.md", "text": "# Good"})
    page.evaluate(DROP.replace("NAMED", dropped))
    page.wait("!byId('download').hidden")
    assert not is_shown(page, "#error")


def test_a_document_is_cancelled(page, job, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("Good morning.", encoding="utf-8")
    page.choose("#source", "en")
    job.gate.clear()
    page.choose_files("#file", [path])
    wait_until(lambda: job.batches)
    page.click("#cancel")
    page.wait("byId('upload').hidden")
    assert page.evaluate("document.activeElement.id") == "file"
    job.gate.set()
    page.evaluate("text.focus()")
    page.type("Good.")
    page.wait(showing("[de] Good."))
    assert not is_shown(page, "#download") and not is_shown(page, "#error")


def test_a_key_is_asked_for_if_the_server_requires_one(browser, job, tmp_path):
    database = tmp_path / "server.db"
    key = ApiKeys(Database(database)).create("me")
    service = made_service(job, wait_milliseconds=0, database=str(database), require_keys=True)
    with serving(service) as url:
        load(browser, url)
        browser.type("Good.")
        browser.wait("!document.getElementById('error').hidden")
        assert text_of(browser, "#message").startswith("The server requires an API key")
        browser.evaluate("document.getElementById('key').focus()")
        browser.type(key)
        browser.click("#retry")
        browser.wait(f"{OUTPUT}.endsWith('] Good.')")


def test_the_keyboard_reaches_everything_and_translates_at_once(page, job):
    page.evaluate("document.getElementById('theme').focus()")
    reached = []
    for _ in range(5):
        page.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert reached == ["source", "swap", "target", "text", "translation"]
    page.evaluate("clearTimeout(timer); typed = () => {}; text.focus()")
    page.type("Now.")
    page.evaluate("clearTimeout(timer)")
    page.press("Enter", ctrl=True)
    page.wait(showing("[de] Now."))


def test_every_control_has_a_name_for_screen_readers(page):
    page.evaluate(f"showAnswer({json.dumps(ANSWER)})")
    show_everything(page)
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "combobox", "textbox", "progressbar", "meter", "status", "alert", "link"}
    names = {
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node.get("ignored") and node["role"]["value"] in roles
    }
    named = {name for role, name in names if role in ("button", "combobox", "textbox")}
    assert {"Source language", "Target language", "Text to translate", "Copy"} < named
    assert "Swap the languages" in named and "" not in named


def show_everything(page: Browser) -> None:
    """Show all parts of the page, with long words."""
    page.evaluate(
        "showError('A message of ' + 'many'.repeat(40) + ' letters.', translateNow);"
        "showProgress('Translating ' + 'name'.repeat(40) + '.docx', 50);"
        "offerDownload({translatedFileUrl: '/download_file/x', missingTerms: ['Haus'.repeat(40)]},"
        " 'name'.repeat(40) + '.docx');"
        "text.value = 'wort'.repeat(90); typed();"
        "for (const id of ['glossary-box', 'documents', 'key-label'])"
        " document.getElementById(id).hidden = false;"
        "for (const node of document.querySelectorAll('details')) node.open = true;"
    )


@pytest.mark.parametrize("width", [320, 360, 700, 1400])
def test_no_width_scrolls_sideways(page, width):
    page.resize(width, 800)
    answer = {**ANSWER, "translatedText": ANSWER["translatedText"] + "wort" * 90}
    page.evaluate(f"showAnswer({json.dumps(answer)})")
    show_everything(page)
    root = "document.documentElement"
    assert page.evaluate("innerWidth") == width
    assert page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth")
    beyond = page.evaluate(
        "[...document.body.querySelectorAll('*')].filter(node => node.offsetHeight > 1 &&"
        " node.getBoundingClientRect().right > innerWidth).map(node => node.outerHTML)"
    )
    assert beyond == []
    sides = page.evaluate(
        "[text, translation].map(node => Math.round(node.getBoundingClientRect().left))"
    )
    assert (sides[0] == sides[1]) is (width <= 640)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_in_both_schemes(page, scheme):
    page.prefer(scheme)
    page.evaluate(f"showAnswer({json.dumps(ANSWER)})")
    show_everything(page)
    for selector, behind in (
        *(("#text", ".card"), ("#translation", ".panel + .panel"), ("#count", ".card")),
        *(("#message", "#error"), ("#warnings h2", ".card"), ("#warnings q", ".card")),
        *(("h1", "body"), ("#formats", ".card"), ("#copy", "#copy"), ("#download a", ".card")),
    ):
        style = f"getComputedStyle(document.querySelector({json.dumps(selector)})).color"
        back = f"getComputedStyle(document.querySelector({json.dumps(behind)})).backgroundColor"
        ratio = contrast(hexadecimal(page.evaluate(style)), hexadecimal(page.evaluate(back)))
        assert ratio >= 4.5, (selector, ratio)
    dark = contrast(hexadecimal(page.evaluate(back)), "#ffffff") > 10
    assert dark is (scheme == "dark")


def test_a_theme_that_was_chosen_stays(page):
    page.prefer("light")
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    for _ in range(2):
        page.click("#theme")
    assert text_of(page, "#theme") == "Theme: dark"
    dark = page.evaluate(back)
    assert dark != light
    load(page, page.url)
    assert page.evaluate(back) == dark


def test_the_page_uses_nothing_of_other_addresses_and_no_script_of_its_text(page, job):
    job.respond = lambda text: "<img src=x onerror='window.stolen = 1'><b>bold</b>"
    page.type("Good.")
    page.wait(f"{OUTPUT}.startsWith('<img')")
    page.evaluate(
        "document.head.append(Object.assign(document.createElement('script'),"
        " {textContent: 'window.stolen = 1'}))"
    )
    assert page.evaluate("window.stolen === undefined")
    assert len([text for text in page.logged() if "Content Security Policy" in text]) == 1
    urls = {
        event["params"]["request"]["url"]
        for event in page.events
        if event.get("method") == "Network.requestWillBeSent"
    }
    assert len(urls) > 4
    assert all(url.startswith((page.url, "data:")) for url in urls)


def test_the_page_reports_no_mistakes_of_its_own(page):
    page.type("Good.")
    page.wait(showing("[de] Good."))
    page.click("#copy")
    page.wait("document.getElementById('status').textContent === 'Copied'")
    assert page.logged() == []
    names = page.evaluate(
        "[source, target].map(one => [...one.options].map(option => option.text))"
    )
    sorted_names = ["Chinese", "English", "French", "German", "Portuguese"]
    assert len(LANGUAGES) == len(sorted_names) and names[0][1:] == names[1] == sorted_names
