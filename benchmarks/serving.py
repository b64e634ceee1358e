"""What the service bears: speed, overload, ends and reloads under load, odd requests, clients of other makers.

    python benchmarks/serving.py all          # load, bits, overload, term and reload, and what holds: five minutes
    python benchmarks/serving.py load         # wrk at 1, 8 and 64 connections, against a plain loop over members
    python benchmarks/serving.py bits         # answers under load against answers one by one, bit for bit
    python benchmarks/serving.py overload     # one minute far beyond capacity: statuses, memory, and back to normal
    python benchmarks/serving.py term         # SIGTERM under load
    python benchmarks/serving.py reload       # the run is replaced every two seconds under load
    python benchmarks/serving.py schemathesis --examples 2000
    python benchmarks/serving.py triton       # the client of Triton, unchanged
    python benchmarks/serving.py kserve       # the client of KServe, unchanged

It needs the extra `serve`, `wrk` (a package of the system), `httpx`, `schemathesis`, `tritonclient[http]` and `kserve`.
All of it happens on this machine. A run of ten members on a table of 3,000 rows is trained first, in the folder of
--work.
"""

import argparse
import asyncio
import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np

NUMBERS = [f"x{i}" for i in range(6)]
WRK = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = io.open("BODY", "r"):read("*a")
local threads = {}
function setup(thread) table.insert(threads, thread) end
function init(args) s200 = 0; s503 = 0; other = 0 end
function response(status)
  if status == 200 then s200 = s200 + 1 elseif status == 503 then s503 = s503 + 1 else other = other + 1 end
end
function done(summary, latency, requests)
  local a, b, c = 0, 0, 0
  for _, t in ipairs(threads) do a = a + t:get("s200"); b = b + t:get("s503"); c = c + t:get("other") end
  local e = summary.errors
  print(string.format("RESULT %d %d %d %d %f %f %f", a, b, c, e.connect + e.read + e.write + e.timeout,
    latency:percentile(50), latency:percentile(99), summary.duration / 1e6))
end
"""


# --- a run, rows, and servers ---


def make_run(work, name="run", seed=0):
    folder, table = work / name, work / "table.csv"
    if not (folder / "profile.json").is_file():
        rng = np.random.default_rng(0)
        x, colour = rng.normal(size=(3_000, 6)), rng.choice(["red", "green", "blue"], 3_000)
        y = 3 * x[:, 0] + np.sin(2 * x[:, 1]) + 2 * (colour == "red") + rng.normal(size=3_000) * 0.5
        with table.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*NUMBERS, "colour", "y"])
            writer.writerows([*np.round(a, 5), b, round(c, 4)] for a, b, c in zip(x, colour, y, strict=True))
        from bayesemble.apps.tables.description import TableRequest
        from bayesemble.apps.tables.run import fit_table
        from bayesemble.estimators.recipe import Recipe

        recipe = Recipe("deep_ensemble", {"num_members": 10}, epochs=10)
        fit_table(TableRequest(str(table), "y", seed=seed, recipe=recipe), folder)
    return folder


def make_rows(count, seed=1):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(count, 6)).round(5).tolist()
    return [dict(zip(NUMBERS, one, strict=True)) | {"colour": str(rng.choice(["red", "blue"]))} for one in values]


class Server:
    """A process that serves, at a port that is free."""

    def __init__(self, *command, log=None):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
        self.log = open(log or os.devnull, "w")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment
        )
        for line in self.process.stdout:
            if found := re.search(r"http://\S+", line):
                self.url = found[0]
                return
        raise RuntimeError(f"{command} did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)
        self.log.close()

    @property
    def megabytes(self):
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024


def ours(run, *more, log=None):
    return Server("-m", "bayesemble", "serve", f"run={run}", "--port", 0, "--quiet", *more, log=log)


def plain(folder, interval):
    """What people write first: FastAPI, and a loop over the members for each request."""
    from copy import deepcopy

    import torch
    import uvicorn
    from fastapi import FastAPI

    from bayesemble.apps.tables.run import inputs_of, open_table
    from bayesemble.apps.tables.targets import columns_of, in_units, values_of
    from bayesemble.data.table_files import Chunk

    torch.set_num_threads(1)
    run = open_table(folder)
    task, members = run.ensemble.task, run.ensemble.state.members
    networks = []
    for i in range(members.num_members):
        network = deepcopy(task.module).eval()
        leaves = members.params | members.buffers
        network.load_state_dict({name: leaf[i] for name, leaf in leaves.items()}, strict=False)
        networks.append(network)
    app = FastAPI()

    @app.post("/predict")
    def predict(body: dict):
        rows = body["rows"]
        columns = {name: [str(row[name]) for row in rows] for name in (*NUMBERS, "colour")}
        encoded = run.schema.encode(Chunk("request", columns, range(len(rows))), with_targets=False)
        inputs = [torch.from_numpy(one) for one in inputs_of(encoded)]
        with torch.no_grad():
            outputs = torch.stack([network(*inputs) for network in networks])
        predictive = in_units(run.schema, task.predictive(outputs, members))
        if not interval:
            parts = (predictive.mean, predictive.std, predictive.aleatoric.sqrt(), predictive.epistemic.sqrt())
            return [[float(part[i]) for part in parts] for i in range(len(rows))]
        values = values_of(run.schema, predictive, run.rules(0.9))
        answers = [
            dict(zip(columns_of(run.schema), map(float, cells), strict=True)) for cells in zip(*values, strict=True)
        ]
        return {"predictions": answers, "unlike": encoded.unlike.tolist(), "why": encoded.reasons}

    import socket

    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning")).run([listening])


def wrk(url, body, connections, seconds):
    """Statuses, errors, p50 and p99 in milliseconds, seconds."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "body.json").write_text(json.dumps(body))
        (folder / "post.lua").write_text(WRK.replace("BODY", str(folder / "body.json")))
        command = [
            "wrk",
            "-t1",
            f"-c{connections}",
            f"-d{seconds}s",
            "--timeout",
            "20s",
            "-s",
            folder / "post.lua",
            url,
        ]
        text = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout
    ok, busy, other, errors, p50, p99, took = map(float, re.search(r"RESULT (.*)", text)[1].split())
    return {
        "200": int(ok),
        "503": int(busy),
        "other": int(other),
        "errors": int(errors),
        "p50": p50 / 1e3,
        "p99": p99 / 1e3,
        "per_second": ok / took,
        "offered": (ok + busy + other) / took,
    }


# --- what is asked ---


def load(asked):
    run, body = make_run(asked.work), {"rows": make_rows(1)}
    print("| server | connections | per second | p50 ms | p99 ms | not 200 |\n| --- | --- | --- | --- | --- | --- |")
    servers = {
        "plain loop": lambda: Server(__file__, "plain", "--run", run),
        "plain loop, no interval": lambda: Server(__file__, "plain", "--run", run, "--no-interval"),
        "bayesemble serve": lambda: ours(run),
    }
    table = {}
    for name, start in servers.items():
        with start() as server:
            wrk(f"{server.url}/predict", body, 8, 2)
            for connections in (1, 8, 64):
                found = wrk(f"{server.url}/predict", body, connections, asked.seconds)
                table[name, connections] = found
                bad = found["503"] + found["other"] + found["errors"]
                figures = f"{found['per_second']:,.0f} | {found['p50']:.1f} | {found['p99']:.1f} | {bad}"
                print(f"| {name} | {connections} | {figures} |", flush=True)
    ours_at, p99s = table["bayesemble serve", 64], [table["bayesemble serve", n] for n in (1, 8, 64)]
    times = [ours_at["per_second"] / table[name, 64]["per_second"] for name in list(servers)[:2]]
    widest = max(one["p99"] / one["p50"] for one in p99s)
    return {
        f"at 64 connections at least 5 times the plain loop: {times[0]:.1f}": times[0] >= 5,
        f"at 64 connections at least 5 times the plain loop without intervals: {times[1]:.1f}": times[1] >= 5,
        f"p99 under 10 times p50: at most {widest:.1f} times": widest < 10,
    }


async def _posted(client, url, body):
    reply = await client.post(url, json=body)
    return reply.status_code, reply.json()


def bits(asked):
    rows = make_rows(400)
    rng = np.random.default_rng(0)
    with ours(make_run(asked.work)) as server:
        url = f"{server.url}/predict"
        alone = [httpx.post(url, json={"rows": [row]}).json()["predictions"][0] for row in rows]

        async def together():
            async with httpx.AsyncClient(limits=httpx.Limits(max_connections=64), timeout=60) as client:
                parts, left = [], list(rng.permutation(400))
                while left:
                    size = int(rng.integers(1, 12))
                    parts.append(left[:size])
                    left = left[size:]
                replies = await asyncio.gather(
                    *(_posted(client, url, {"rows": [rows[i] for i in part]}) for part in parts)
                )
            return [
                (i, one)
                for part, (_, reply) in zip(parts, replies, strict=True)
                for i, one in zip(part, reply["predictions"], strict=True)
            ]

        differ = compared = 0
        for _ in range(10):
            for i, one in asyncio.run(together()):
                compared += 1
                differ += {**one, "id": ""} != {**alone[i], "id": ""}
    print(f"{compared} answers among others (64 connections, 1 to 11 rows each): {differ} differ from those alone")
    return {f"answers bit-equal to those alone: {differ} of {compared} differ": differ == 0}


def overload(asked):
    with ours(make_run(asked.work), "--queue-rows", 1000) as server:
        url, body = f"{server.url}/predict", {"rows": make_rows(50)}
        before = wrk(url, body, 4, 5)
        samples = []
        with tempfile.TemporaryDirectory() as place:
            body_file, script = Path(place) / "body.json", Path(place) / "post.lua"
            body_file.write_text(json.dumps(body))
            script.write_text(WRK.replace("BODY", str(body_file)))
            command = ["wrk", "-t1", "-c640", f"-d{asked.minute}s", "--timeout", "30s", "-s", str(script), url]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as storm:
                while storm.poll() is None:
                    time.sleep(1)
                    samples.append(server.megabytes)
                text = storm.stdout.read()
        ok, busy, other, errors, p50, p99, took = map(float, re.search(r"RESULT (.*)", text)[1].split())
        time.sleep(3)  # what was taken is answered first
        after = wrk(url, body, 4, 5)
    offered, third = 50 * (ok + busy + other) / took, len(samples) // 3
    most = [f"{max(samples[i * third : (i + 1) * third]):.0f}" for i in range(3)]
    print(f"capacity before: {50 * before['per_second']:,.0f} rows per second")
    print(f"{took:.0f} s with 640 connections, {offered:,.0f} rows offered per second:")
    print(f"  200: {ok:.0f}, 503: {busy:.0f}, other: {other:.0f}, errors: {errors:.0f}")
    print(f"  p50 {p50 / 1e3:.0f} ms, p99 {p99 / 1e3:.0f} ms")
    print(f"  memory: {samples[0]:.0f} MB at first, at most {', '.join(most)} MB in each third")
    print(f"afterwards: {50 * after['per_second']:,.0f} rows per second, {after['503'] + after['other']} not 200")
    times, grown = offered / (50 * before["per_second"]), float(most[2]) - float(most[0])
    return {
        f"ten times capacity: {times:.1f} times": times >= 10,
        f"every request 200 or 503: {other:.0f} others, {errors:.0f} errors": other + errors == 0,
        f"memory flat: {grown:+.0f} MB from the first third to the last": grown < 20,
        "then normal again: every request 200": after["503"] + after["other"] + after["errors"] == 0,
    }


async def _hammer(url, body, until, counts, versions, workers=32):
    """Requests on connections of their own, so that each is taken or not; what comes back is counted."""

    async def one():
        while not until.is_set():
            try:
                async with httpx.AsyncClient(timeout=60, verify=False) as client:
                    reply = await client.post(url, json=body, headers={"connection": "close"})
                key = str(reply.status_code)
                if reply.status_code == 200:
                    versions.add(reply.json()["version"])
            except httpx.ConnectError:
                key = "refused"
                await asyncio.sleep(0.05)
            except httpx.HTTPError as error:
                key = type(error).__name__
            counts[key] = counts.get(key, 0) + 1

    await asyncio.gather(*(one() for _ in range(workers)))


def term(asked):
    totals = {}
    for number in range(asked.times):
        with tempfile.TemporaryDirectory() as place:
            log = Path(place) / "log"
            server = Server("-m", "bayesemble", "serve", f"run={make_run(asked.work)}", "--port", 0, log=log)

            async def storm(server=server):
                until, counts = asyncio.Event(), {}
                task = asyncio.create_task(
                    _hammer(f"{server.url}/predict", {"rows": make_rows(20)}, until, counts, set())
                )
                await asyncio.sleep(1.5 + 0.1 * number)  # noqa: B023
                server.process.send_signal(signal.SIGTERM)
                while server.process.poll() is None:
                    await asyncio.sleep(0.05)
                until.set()
                await task
                return counts

            counts = asyncio.run(storm())
            lines = [json.loads(line) for line in log.read_text().splitlines() if '"request"' in line]
            taken = {}
            for line in lines:
                taken[str(line["status"])] = taken.get(str(line["status"]), 0) + 1
            print(f"taken by the server, by its log: {taken}; answers that clients have: {counts}", flush=True)
            for status, count in taken.items():
                totals[status] = totals.get(status, 0) + count - counts.get(status, 0)
            server.log.close()
    print(f"taken but without an answer, by status: {totals}")
    return {f"SIGTERM answers what was taken: without an answer {totals}": not any(totals.values())}


def reload(asked):
    runs = [make_run(asked.work), make_run(asked.work, "other", seed=1)]
    link = asked.work / "current"
    link.unlink(missing_ok=True)
    link.symlink_to(runs[0])
    with ours(link, "--reload-seconds", 0.5) as server:

        async def storm():
            until, counts, versions = asyncio.Event(), {}, set()
            task = asyncio.create_task(
                _hammer(f"{server.url}/predict", {"rows": make_rows(5)}, until, counts, versions)
            )
            for number in range(asked.seconds // 2):
                await asyncio.sleep(2)
                fresh = asked.work / "fresh"
                fresh.symlink_to(runs[(number + 1) % 2])
                fresh.rename(link)
            await asyncio.sleep(2)
            until.set()
            await task
            return counts, versions

        counts, versions = asyncio.run(storm())
    print(f"{len(versions)} versions answered; {counts}")
    asked_for, ok = sum(counts.values()), counts.get("200", 0)
    holds = ok == asked_for and len(versions) > 2
    return {f"hot reload under load drops none: {ok} of {asked_for} answered, by {len(versions)} versions": holds}


def everything(asked):
    """What the service must bear, all in one, and whether it did."""
    begin, verdicts = time.monotonic(), {}
    make_run(asked.work, "other", seed=1)
    for task in (load, bits, overload, term, reload):
        print(f"\n{task.__name__}", flush=True)
        verdicts |= task(asked)
    print(f"\nin {time.monotonic() - begin:.0f} s")
    for sentence, holds in verdicts.items():
        print(f"{'holds' if holds else 'FAILS'}: {sentence}")


def schemathesis(asked):
    with ours(make_run(asked.work)) as server:
        command = [Path(sys.executable).parent / "schemathesis", "run", f"{server.url}/openapi.json"]
        command += ["--max-examples", asked.examples, "--checks", "not_a_server_error,status_code_conformance"]
        command += ["--phases", "examples,coverage,fuzzing", "--request-timeout", 30, "--seed", asked.seed]
        begin = time.monotonic()
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        print(done.stdout[-3000:], done.stderr[-500:])
        statuses = {}
        for line in httpx.get(f"{server.url}/metrics").text.splitlines():
            if found := re.match(r'bayesemble_requests_total\{.*status="(\d+)"\} (\d+)', line):
                statuses[found[1]] = statuses.get(found[1], 0) + int(found[2])
        total = sum(statuses.values())
        worst = sum(count for status, count in statuses.items() if status >= "500" and status != "503")
        print(f"{total:,} requests in {time.monotonic() - begin:.0f} s, by status: {statuses}; {worst} 5xx but for 503")


def triton(asked):
    import tritonclient.http as client

    rows = make_rows(7)
    with ours(make_run(asked.work)) as server:
        address = server.url.removeprefix("http://")
        made = client.InferenceServerClient(address)
        assert made.is_server_live()
        assert made.is_server_ready()
        assert made.is_model_ready("run")
        about = made.get_model_metadata("run")
        print("metadata:", [one["name"] for one in about["inputs"]], "->", [one["name"] for one in about["outputs"]])
        same = httpx.post(f"{server.url}/predict", json={"rows": rows}).json()["predictions"]
        for binary in (True, False):
            inputs = []
            for column in about["inputs"]:
                one = client.InferInput(column["name"], [7, 1], column["datatype"])
                kind = object if column["datatype"] == "BYTES" else np.float64
                values = np.array([[row[column["name"]]] for row in rows], dtype=kind)
                one.set_data_from_numpy(values, binary_data=binary)
                inputs.append(one)
            outputs = [
                client.InferRequestedOutput(name, binary_data=binary) for name in ("prediction", "low", "unlike", "why")
            ]
            found = made.infer("run", inputs, outputs=outputs)
            assert found.as_numpy("prediction")[:, 0].tolist() == [one["prediction"] for one in same]
            assert found.as_numpy("low")[:, 0].tolist() == [one["low"] for one in same]
            assert found.as_numpy("unlike")[:, 0].tolist() == [one["unlike"] for one in same]
            everything = made.infer("run", inputs)
            assert everything.as_numpy("high")[:, 0].tolist() == [one["high"] for one in same]
            print(f"tritonclient, {'bytes' if binary else 'JSON'}: the same bits as /predict")


def kserve(asked):
    sys.argv = sys.argv[:1]  # which that package would read as its own when it is imported
    from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

    async def ask(url, rows):
        made = InferenceRESTClient(RESTConfig(protocol="v2", timeout=60))
        assert await made.is_server_live(url)
        assert await made.is_server_ready(url)
        assert await made.is_model_ready(url, "run")
        inputs = [
            InferInput(name, [len(rows), 1], "BYTES" if name == "colour" else "FP64", data=[row[name] for row in rows])
            for name in rows[0]
        ]
        found = await made.infer(url, InferRequest(model_name="run", infer_inputs=inputs), model_name="run")
        return {one.name: one.data for one in found.outputs}

    rows = make_rows(7)
    with ours(make_run(asked.work)) as server:
        same = httpx.post(f"{server.url}/predict", json={"rows": rows}).json()["predictions"]
        found = asyncio.run(ask(server.url, rows))
        for name in ("prediction", "low", "high", "unlike"):
            assert found[name] == [one[name] for one in same]
    print("the REST client of kserve: the same numbers as /predict")


def main():
    tasks = {"all": everything} | {
        one.__name__: one for one in (load, bits, overload, term, reload, schemathesis, triton, kserve)
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=[*tasks, "plain"])
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "bayesemble-serving")
    parser.add_argument("--seconds", type=int, default=8, help="of each load, and of reload")
    parser.add_argument("--minute", type=int, default=60, help="seconds of overload")
    parser.add_argument("--times", type=int, default=5, help="how often SIGTERM is sent")
    parser.add_argument("--examples", type=int, default=1000, help="of each operation, for schemathesis")
    parser.add_argument("--seed", type=int, default=1, help="of the cases, for schemathesis")
    parser.add_argument("--run", help="of the plain server")
    parser.add_argument("--no-interval", action="store_true", help="of the plain server")
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    if asked.task == "plain":
        plain(asked.run, not asked.no_interval)
    else:
        tasks[asked.task](asked)


if __name__ == "__main__":
    main()
