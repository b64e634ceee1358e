"""Small tables and runs for tests of the service and of the watch."""

import asyncio
import csv
import json

import numpy as np

from bayesemble.apps.tables.description import TableRequest
from bayesemble.apps.tables.run import fit_table
from bayesemble.estimators.recipe import Recipe


def draw_rows(num, seed, shift=0.0):
    """Rows as objects: two numbers, a category that may be missing, a truth, a day, and targets that depend on them."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(num):
        size, width = rng.normal(100, 20), rng.normal() + shift
        city = str(rng.choice(["Rome", "Oslo", "Bonn"]))
        garden, day = bool(rng.random() < 0.5), f"2020-{rng.integers(1, 13):02}-{rng.integers(1, 29):02}"
        price = size + 30 * (city == "Rome") + 5 * width + rng.normal(0, 5)
        city = None if rng.random() < 0.1 else city
        rows.append({"size": round(size, 3), "width": round(width, 3), "city": city, "garden": garden, "day": day})
        rows[-1] |= {"price": round(price, 3), "kind": "dear" if price > 110 else "cheap"}
    return rows


def write_csv(path, rows, target):
    names = ["size", "width", "city", "garden", "day", *([target] if target else [])]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for row in rows:
            cells = row | {"garden": "yes" if row["garden"] else "no"}
            writer.writerow(["" if cells[name] is None else cells[name] for name in names])
    return path


def make_run(folder, target, num=300, seed=0, test=0.3):
    table = write_csv(folder / f"{target}-{num}.csv", draw_rows(num, 1), target)
    recipe = Recipe("deep_ensemble", {"num_members": 2}, epochs=4, width=8, depth=0)
    return fit_table(TableRequest(str(table), target, seed=seed, test=test, recipe=recipe), folder / f"{target}-{seed}")


def without_ids(answers):
    return [{name: value for name, value in one.items() if name != "id"} for one in answers]


def ask(app, method, path, content=None, **more):
    """A request to an application, without a network: status, content and headers."""
    import httpx

    async def go():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.request(method, path, content=content, **more)

    reply = asyncio.run(go())
    is_json = reply.headers.get("content-type") == "application/json"
    return reply.status_code, json.loads(reply.content) if is_json else reply.content, reply.headers
