"""Ways to damage the bytes of a file, and to make manifests agree with files that were changed."""

import hashlib
import json
import random
import re
from pathlib import Path

from fuzz_tables import with_another_value

_DIGIT = re.compile(rb"[0-9]")
_OWN_CHECKSUM = re.compile(rb'"checksum": ?"([0-9a-f]{64})"')


def _flip(chance: random.Random, data: bytearray) -> str:
    place, bit = chance.randrange(len(data)), chance.randrange(8)
    data[place] ^= 1 << bit
    return f"bit {bit} of byte {place} flipped"


def _byte(chance: random.Random, data: bytearray) -> str:
    place = chance.randrange(len(data))
    data[place] = (data[place] + chance.randrange(1, 256)) % 256
    return f"byte {place} became {data[place]}"


def _digit(chance: random.Random, data: bytearray) -> str:
    """Another digit somewhere: what still reads well."""
    places = [found.start() for found in _DIGIT.finditer(bytes(data))]
    if not places:
        return _byte(chance, data)
    place = chance.choice(places)
    data[place] = ord("0") + (data[place] - ord("0") + chance.randrange(1, 10)) % 10
    return f"digit at byte {place} became {chr(data[place])}"


def _cut(chance: random.Random, data: bytearray) -> str:
    size = chance.randrange(len(data))
    del data[size:]
    return f"cut to {size} bytes"


def _zeros(chance: random.Random, data: bytearray) -> str:
    """What a power loss may leave of a file."""
    start = chance.randrange(len(data))
    end = min(len(data), start + chance.choice([1, 8, 512]))
    data[start:end] = bytes(end - start)
    return f"bytes {start} to {end} became zero"


def _drop(chance: random.Random, data: bytearray) -> str:
    place = chance.randrange(len(data))
    del data[place]
    return f"byte {place} gone"


def _more(chance: random.Random, data: bytearray) -> str:
    extra = chance.randbytes(chance.choice([1, 100]))
    data += extra
    return f"{len(extra)} more bytes"


def _value(chance: random.Random, data: bytearray) -> str:
    """JSON in which one value is another."""
    try:
        lines = data.splitlines() if data.count(b"\n{") else [bytes(data)]
        number = chance.randrange(len(lines))
        lines[number] = json.dumps(with_another_value(chance, json.loads(lines[number]))).encode()
    except ValueError:
        return _digit(chance, data)
    data[:] = b"\n".join(lines) + b"\n"
    return f"another value somewhere in JSON object {number}"


WAYS = (_flip, _flip, _flip, _byte, _digit, _digit, _cut, _zeros, _drop, _more, _value, _value)


def damage(chance: random.Random, file: Path) -> str:
    """Damage a file for sure; in words what was done."""
    before = file.read_bytes()
    data = bytearray(before)
    words = ""
    while bytes(data) == before:
        words = chance.choice(WAYS)(chance, data)
    file.write_bytes(bytes(data))
    return words


def fit_manifests(folder: Path) -> None:
    """Make every checksum in a folder agree with its files, as somebody who knows the format could."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.name != "manifest.json":
            _seal(path)
    for path in sorted(folder.rglob("manifest.json"), key=lambda one: -len(one.parts)):
        manifest = json.loads(path.read_text())
        for name, entry in manifest["files"].items():
            file = path.parent / name
            if file.is_file() and isinstance(entry, dict):
                data = file.read_bytes()
                entry |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        path.write_text(json.dumps(manifest))
        _seal(path)


def _seal(path: Path) -> None:
    """Where a file holds the sha256 of itself with zeros in its place, make it so again."""
    data = path.read_bytes()
    found = _OWN_CHECKSUM.search(data)
    if found is not None:
        start, end = found.span(1)
        digest = hashlib.sha256(data[:start] + b"0" * 64 + data[end:]).hexdigest().encode()
        path.write_bytes(data[:start] + digest + data[end:])
