"""HTML elements: text is escaped, elements are not."""

from oncegate.analysis.markup import Markup, element


def test_text_is_escaped() -> None:
    """Text and attributes are escaped, also in nested lists; elements are inserted as they are."""
    made = element("p", "<b>", [element("i", '"&"'), None, 5], title='"><script>', data_label="x", hidden=True, id=None)
    assert made == ('<p title="&quot;&gt;&lt;script&gt;" data-label="x" hidden>&lt;b&gt;<i>&quot;&amp;&quot;</i>5</p>')
    assert isinstance(made, Markup)


def test_elements_without_content() -> None:
    """Elements without content are closed as HTML and SVG need it."""
    assert element("br") == "<br>"
    assert element("rect", x=1, class_="a") == '<rect x="1" class="a"/>'
