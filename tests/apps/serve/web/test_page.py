import re

import pytest

from bayesemble.apps.serve.web.page import POLICY, api_page, live_page


@pytest.mark.parametrize("page", [live_page, api_page])
def test_pages_are_whole_in_themselves(page):
    text = page()
    assert not re.search(r"/\*(style|own|script)\*/|<!--version-->", text)
    assert not re.search(r"(src|href)=[\"'](?!data:|#|/(docs|metrics|openapi\.json)?[\"'])", text)
    assert re.findall(r"https?://[^\"')\s]+", text) == ["http://www.w3.org/2000/svg"]  # a name, not an address
    assert "--paper" in text


def test_texts_of_rows_never_become_markup():
    assert "innerHTML" not in live_page() + api_page()
    assert "default-src 'none'" in POLICY
