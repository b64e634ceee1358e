"""Tables as people and programs make them, with what readers stumble over."""

import csv
import io

ODD = [
    "",
    "NA",
    "?",
    "1",
    "2",
    "0.5",
    "1,5",
    "1.234",
    "1,234",
    "1e999",
    "-inf",
    "1e308",
    "1e-320",
    "9" * 400,
    "yes",
    "no",
]
ODD += [
    "2024-01-31",
    "0001-01-01T00:00+23:59",
    "9999-12-31 23:59-10:00",
    "31/12/2024",
    "1/2/2024",
    "2024-13-45",
    "1.1.0000",
]
ODD += [
    '"',
    '""',
    '"a"b',
    'a"b',
    '"x,y"',
    '"x\ny"',
    "\r",
    "\0",
    "é",
    "\u2028",
    "a",
    "b",
    " a ",
    "x" * 300,
    "-",
    "\\N",
    "1_000",
]
USUAL = [["1", "2", "3"], ["0.5", "7", ""], ["a", "b", "c"], ["yes", "no"], ["2024-01-31", "2023-05-06"], ["1,5", "2"]]
ENCODINGS = ["utf-8"] * 6 + ["utf-8-sig", "utf-16", "latin-1", "utf-16-le"]


def odd_table(generator):
    """The bytes of a table whose columns are of one kind, mostly, with a few odd cells."""
    sign, width = generator.choice(",;\t"), generator.randint(1, 6)
    names = [generator.choice(["y", "a", "b", "c d", "e", "", '"q;"', "f,g"]) for _ in range(width)]
    if generator.random() < 0.9:
        names = ["y", *(f"c{i}" for i in range(1, width))]
    usual = [generator.sample(ODD, 2) if generator.random() < 0.3 else generator.choice(USUAL) for _ in range(width)]
    if generator.random() < 0.7:
        usual[0] = generator.choice([["1", "2"], ["0.5", "7"], ["a", "b", "c"], ["yes", "no"], ["0", "30", "2.5"]])
    oddness = generator.choice([0, 0, 0.02, 0.3])
    lines = [sign.join(names)]
    for _ in range(generator.choice([0, 1, 3, 10, 25, 30])):
        cells = [
            generator.choice(ODD) if generator.random() < oddness else generator.choice(column) for column in usual
        ]
        cells = [f'"{cell}"' if sign in cell and '"' not in cell else cell for cell in cells]
        lines.append(sign.join(cells[: -1 if generator.random() < oddness / 10 else None]))
    return (
        generator.choice(["\n", "\n", "\r\n", "\r"]).join(lines).encode(generator.choice(ENCODINGS), errors="replace")
    )


def quoted_table(generator):
    """The names and columns of a table of odd cells, and its bytes in one of the forms that the csv module writes."""
    names = generator.sample(["y", "a", "c d", "f,g", 'q"', "h;i", "é", "two\nlines", "1"], generator.randint(2, 6))
    kinds = [ODD if generator.random() < 0.1 else generator.choice(USUAL) for _ in names]
    rows = [[generator.choice(kind) for kind in kinds] for _ in range(generator.randint(2, 60))]
    rows = [[cell.replace("\0", "0").replace("\r", "r") for cell in row] for row in rows]
    text = io.StringIO(newline="")
    quoting = generator.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    form = {"delimiter": generator.choice(",;\t"), "lineterminator": generator.choice(["\n", "\r\n"])}
    csv.writer(text, quoting=quoting, **form).writerows([names, *rows])
    encoding = generator.choice(["utf-8", "utf-8-sig", "utf-16"])
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)), text.getvalue().encode(encoding)
