"""A parser of report pages, independent of the code that writes them."""

from html.parser import HTMLParser

VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})


class Page(HTMLParser):
    """A strict parser: records every tag without its counterpart."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open = []
        self.faults = []
        self.tags = []
        self.words = []
        self.tables = []
        self.feed(text)
        self.close()
        self.faults += [f"{tag} is never closed" for tag in self.open]

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if len(dict(attributes)) != len(attributes):
            self.faults.append(f"{tag} has an attribute twice")
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if not self.open or self.open[-1] != tag:
            self.faults.append(f"{tag} closes {self.open[-1:]}")
        else:
            self.open.pop()

    def handle_data(self, data):
        if {"style", "title", "script"} & set(self.open):
            return
        self.words.append(data)
        if {"td", "th"} & set(self.open) and self.tables and self.tables[-1] and self.tables[-1][-1]:
            self.tables[-1][-1][-1] += data

    @property
    def text(self):
        """The page's words, white space made single."""
        return " ".join(" ".join(self.words).split())

    def table(self, corner, column):
        """The first table whose heading has both cells."""
        for table in self.tables:
            if table and corner in table[0] and any(column in cell for cell in table[0]):
                return table
        raise AssertionError(f"No table with {corner} and {column}.")
