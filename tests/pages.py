"""A page as a browser would read it."""

import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """A page as a browser would read it: its tags with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data[:80]}")

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    @property
    def words(self) -> str:
        """The text in one line, however the page breaks it."""
        return " ".join(self.text.split())

    @property
    def skeleton(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(tag, tuple(attributes)) for tag, attributes in self.tags]

    def links(self) -> list[str]:
        return [attributes["href"] for _, attributes in self.tags if "href" in attributes]

    def must_be_inert(self) -> None:
        csp = [a["content"] for tag, a in self.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
        assert len(csp) == 1
        assert csp[0].startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
        for tag, attributes in self.tags:
            assert tag not in {
                "script",
                "img",
                "iframe",
                "object",
                "embed",
                "base",
                "form",
                "foreignobject",
                "use",
                "image",
                "audio",
                "video",
            }
            for name, value in attributes.items():
                assert not name.startswith("on"), (tag, name)
                assert name not in {"src", "srcset", "srcdoc", "action", "formaction", "xlink:href", "ping"}, (tag, name)
                assert "://" not in value or name in {"title", "aria-label"}, (tag, name, value[:80])
        for link in self.links():
            assert link == "data:," or re.fullmatch(r"(\.\./)?([a-z_]+/)?(index|\d{4}-\d\d-\d\d(-gx)?)\.html", link), link
