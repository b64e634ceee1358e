from bayesemble.core.html import facts_table


def test_a_table_has_a_title_and_a_row_for_each_fact():
    text = facts_table("Title", {"members": 3, "rows": "7"})
    assert text.startswith("<table>")
    assert text.count("<tr>") == 3
    for words in ("Title", "members", ">3<", "rows", ">7<"):
        assert words in text


def test_texts_are_escaped():
    assert facts_table("<b>", {"<b>": "<b>"}).count("&lt;b&gt;") == 3
    assert "<b>" not in facts_table("<b>", {"<b>": "<b>"})
