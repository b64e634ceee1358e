"""A run as it answers: predictions in blocks of one size, so that no answer depends on the rows it is computed with.

Sums of a matrix product are taken in an order that depends on the shape of the matrices, and in parts on where in them
a row stands: the same row, alone or among others, differs in its last bits. In blocks of `BLOCK` rows, filled up with
copies of the last row, neither is seen: the answer to a row is the same bits whoever else asks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from bayesemble.apps.serve.options import Options
from bayesemble.apps.tables.profile import Profile, doubts_of, read_profile
from bayesemble.apps.tables.run import TableRun, open_table
from bayesemble.apps.tables.targets import columns_of, values_of
from bayesemble.core.errors import DataError, SettingError
from bayesemble.core.settings import require
from bayesemble.data.schema import Encoded, Schema
from bayesemble.data.table_files import Chunk
from bayesemble.predictive import Predictive
from bayesemble.predictive.abstain import Abstention, threshold_by
from bayesemble.training.afterwards.calibration import Calibration
from bayesemble.training.outgoing.readings import Rules

BLOCK = 128


@dataclass(frozen=True, eq=False)
class Answered:
    """Rows with their answers, and what a watch needs of them."""

    answers: list[dict[str, Any]]
    encoded: Encoded
    doubts: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Model:
    """A run that answers, by the rules that were chosen."""

    run: TableRun
    rules: Rules
    rule: Abstention | None
    profile: Profile | None
    notes: tuple[str, ...]
    version: str

    @property
    def level(self) -> float:
        """Of intervals and sets."""
        return self.rules.level

    @property
    def schema(self) -> Schema:
        """What the columns mean."""
        return self.run.schema

    @cached_property
    def answer_names(self) -> list[str]:
        """The fields of an answer, in their order, but its id."""
        if self.schema.task == "classification":
            return ["prediction", "probabilities", "set", "entropy", "aleatoric", "epistemic", *_JUDGED]
        return ["prediction", "low", "high", "std", "aleatoric_std", "epistemic_std", *_JUDGED]

    def answer(self, chunk: Chunk) -> Answered:
        """Answers to the rows of a chunk."""
        encoded = self.schema.encode(chunk, with_targets=False)
        blocks = [self._answer_block(encoded, begin) for begin in range(0, len(encoded.rows), BLOCK)]
        doubts = {name: np.concatenate([block[1][name] for block in blocks]) for name in blocks[0][1]}
        return Answered([one for block in blocks for one in block[0]], encoded, doubts)

    def predict_block(self, numbers: Any, categories: Any) -> Predictive:
        """The prediction of at most `BLOCK` encoded rows, filled up to that many; whoever asks cuts it off."""
        index = np.minimum(np.arange(BLOCK), len(numbers) - 1)
        rows = Encoded(index.astype(np.int64), numbers[index], categories[index], None, [], [])
        return self.run.predict(rows)

    def _answer_block(self, encoded: Encoded, begin: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        part = slice(begin, min(begin + BLOCK, len(encoded.rows)))
        num = part.stop - part.start
        predictive = self.predict_block(encoded.numbers[part], encoded.categories[part])
        values = [column[:num] for column in values_of(self.schema, predictive, self.rules)]
        doubts = {name: values[:num] for name, values in doubts_of(predictive).items()}
        unlike, reasons = encoded.unlike[part].tolist(), encoded.reasons[part]
        too_unsure = self._too_unsure(next(iter(doubts.values())))
        answers = []
        for i, cells in enumerate(zip(*values, strict=True)):
            fields = self._class_fields(cells) if self.schema.task == "classification" else self._number_fields(cells)
            judged = {"unlike": unlike[i], "why": reasons[i]}
            answers.append(fields | judged | self._abstain(too_unsure[i], unlike[i]))
        return answers, doubts

    def _number_fields(self, cells: tuple[Any, ...]) -> dict[str, Any]:
        named = dict(zip(columns_of(self.schema), map(_number, cells), strict=True))
        return {"prediction": named.pop("mean"), "low": named.pop("low"), "high": named.pop("high"), **named}

    def _class_fields(self, cells: tuple[Any, ...]) -> dict[str, Any]:
        label, *numbers = cells[: len(cells) - len(self.rules.decisions)]
        *probs, entropy, aleatoric, epistemic = map(_number, numbers)
        shares = dict(zip(self.schema.target.categories, probs, strict=True))
        return {
            "prediction": label,
            "probabilities": shares,
            "set": self._set(shares),
            "entropy": entropy,
            "aleatoric": aleatoric,
            "epistemic": epistemic,
        }

    def _set(self, shares: dict[str, float | None]) -> list[str]:
        """The classes that are possible: those of the calibration, or the most probable ones that hold the level."""
        calibration = self.rules.calibration
        if calibration is None or calibration.set_threshold is None:
            return smallest_set(shares, self.level)
        return [label for label, share in shares.items() if 1 - (share or 0.0) <= calibration.set_threshold]

    def _too_unsure(self, doubts: Any) -> list[bool]:
        if self.rule is None:
            return [False] * len(doubts)
        return [not doubt < self.rule.threshold for doubt in doubts.astype(np.float64).tolist()]

    def _abstain(self, too_unsure: bool, unlike: bool) -> dict[str, Any]:
        """Whether no answer should be taken: the promise holds neither for rows in more doubt nor for foreign ones."""
        if self.rule is None:
            return {"abstain": False, "abstain_why": ""}
        why = ["its doubt is too large for the risk that was chosen"] if too_unsure else []
        why += ["the row is unlike the training data, for which nothing is promised"] if unlike else []
        return {"abstain": bool(why), "abstain_why": "; ".join(why)}


_JUDGED = ["unlike", "why", "abstain", "abstain_why"]


def _number(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def smallest_set(shares: dict[str, float | None], level: float) -> list[str]:
    """The most probable classes that together hold the target with a probability of at least the level."""
    chosen, total = [], 0.0
    for label, share in sorted(shares.items(), key=lambda item: -(item[1] or 0.0)):
        if total >= level:
            break
        chosen.append(label)
        total += share or 0.0
    return chosen


def open_model(folder: str, options: Options, version: str) -> Model:
    """The run in a folder with the rules of the options, tried on a row."""
    run = open_table(folder)
    profile, note = read_profile(run.folder, run.description)
    rules = run.rules(options.level)
    rule = abstention(run.schema, profile, options, rules.calibration)
    notes = (*run.notes, *([note] if note else []), *([f"the model {rule}"] if rule else []))
    model = Model(run, rules, rule, profile, notes, version)
    sizes = (1, run.schema.num_numbers), (1, len(run.schema.category_sizes))
    model.predict_block(np.zeros(sizes[0], np.float32), np.zeros(sizes[1], np.int64))
    return model


def abstention(
    schema: Schema, profile: Profile | None, options: Options, calibration: Calibration | None = None
) -> Abstention | None:
    """The threshold on doubt that keeps the risk which was chosen, by rows that were not trained on."""
    if calibration is not None and calibration.risk is not None:
        require(
            options.max_risk in (None, calibration.risk),
            f"the run is calibrated for a risk of {calibration.risk:g}; leave --max-risk out, or calibrate anew",
        )
        return calibration.abstention
    if options.max_risk is None:
        return None
    classes = schema.task == "classification"
    if not classes and options.tolerance is None:
        raise SettingError(
            f"{schema.target.name!r} is a number: say with --tolerance from which error on an answer counts as wrong"
        )
    if profile is None or not profile.pairs:
        raise DataError(
            "no row was held out when the run was trained, so no risk can be promised; leave --max-risk out"
        )
    doubt, loss = torch.tensor(profile.pairs, dtype=torch.float64).T
    wrong = loss > (0 if classes else options.tolerance)
    return threshold_by(doubt, wrong, options.max_risk, next(iter(profile.doubt)))
