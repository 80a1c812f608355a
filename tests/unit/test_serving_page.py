"""Files and headers of the translation page; tests/browser uses it in Chromium."""

from __future__ import annotations

import re
import urllib.request

import pytest

from tests.unit.made_server import MadeJob, made_service, serving

FILES = {"/": "text/html", "/style.css": "text/css", "/page.js": "text/javascript"}


@pytest.fixture(scope="module")
def answers():
    """Return headers and text of each file, with two models under the path of the second."""
    with serving(made_service(MadeJob(), MadeJob())) as url:
        return {
            (prefix, path): fetch(f"{url}{prefix}{path}")
            for prefix in ("", "/models/made1")
            for path in FILES
        }


def fetch(url: str) -> tuple[dict[str, str], str]:
    with urllib.request.urlopen(url) as response:
        return dict(response.headers), response.read().decode()


@pytest.mark.parametrize("path", FILES)
def test_files_are_served_with_a_policy_also_for_each_model(answers, path):
    headers, text = answers["", path]
    assert headers["content-type"] == f"{FILES[path]}; charset=utf-8" and len(text) > 1000
    policy = headers["content-security-policy"].split("; ")
    assert policy[0] == "default-src 'none'" and "script-src 'self'" in policy
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert answers["/models/made1", path][1] == text


def test_nothing_is_of_another_address_or_within_the_html(answers):
    text = "\n".join(text for _, text in answers.values())
    assert set(re.findall(r"\w+://[\w.]+", text)) == {"http://www.w3.org"}  # the name of SVG
    html = answers["", "/"][1]
    assert re.findall(r"<script[^>]*>", html) == ['<script src="page.js" defer>']
    assert not re.search(r"<style|\sstyle=|\son\w+=", html)
    # Relative links also work under /models/NAME/ and behind a proxy.
    assert re.findall(r'(?:href|src)="(/[^"]*)"', html) == []
    assert "innerHTML" not in text and "eval(" not in text
