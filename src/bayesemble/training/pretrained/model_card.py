"""A page about a saved ensemble of adapters: what it is, how well it does and what that does not say."""

from __future__ import annotations

from dataclasses import dataclass

from bayesemble.metrics.catalogue import SCORES

_NOTHING_MEASURED = (
    "Nothing was measured when these files were written: pass `data=` to `save_pretrained`. Do not act on the "
    "probabilities before they were compared with what happened."
)
_LOADING = """```python
import torch
from peft import PeftModel

members = [PeftModel.from_pretrained(make_base(), f"{folder}/member-{i:03d}").train(False) for i in range({count})]
probs = torch.stack([member(x).softmax(-1) for member in members]).mean(0)  # outputs that are logits of classes
```"""


@dataclass(frozen=True, kw_only=True)
class Card:
    """What is known of a saved ensemble."""

    network: str
    method: str
    members: int
    trained: int
    """Numbers of one member that were trained."""
    backbone: str | None
    sha256: str | None
    rows: int
    """Training rows."""
    scores: dict[str, float]
    scored_rows: int
    ood_rows: int
    limits: str = ""

    def text(self) -> str:
        """The page, in Markdown."""
        name = self.backbone or "a network without a name"
        parts = [
            self._header(),
            f"# {self.members} adapters of {self.network}, by {self.method}\n",
            f"An ensemble of {self.members} members on one frozen backbone, {name}. Each member has "
            f"{self.trained:,} trained numbers, fitted to {self.rows:,} rows. Their predictions are averaged; where "
            "they disagree, the answer is in doubt.\n",
            *([f"The sha256 of the frozen weights is `{self.sha256}`.\n"] if self.sha256 else []),
            "## Use\n",
            "Each folder holds the adapters of one member, in the files of PEFT. All members count alike unless "
            "`ensemble.json` says otherwise.\n",
            _LOADING.replace("{count}", str(self.members)) + "\n",
            "## Scores\n",
            self._scores(),
            "## Limits\n",
            self._limits(),
        ]
        return "\n".join(parts)

    def _header(self) -> str:
        lines = ["library_name: peft", *([f"base_model: {self.backbone}"] if self.backbone else [])]
        return "\n".join(["---", *lines, "tags:", "- ensemble", "- uncertainty", "---", ""])

    def _scores(self) -> str:
        if not self.scores:
            return f"{_NOTHING_MEASURED}\n"
        rows = [f"Measured on {self.scored_rows:,} rows that were handed to `save_pretrained`.\n"]
        rows += ["| score | value | better | meaning |", "| --- | --- | --- | --- |"]
        for name, value in self.scores.items():
            known = SCORES.get(name)
            told = (known.title, known.direction, known.meaning) if known else (name, "", "")
            rows.append(f"| {told[0]} | {value:.4g} | {told[1]} | {told[2]} |")
        if self.ood_rows:
            rows.append(f"\nScores of telling foreign rows apart compare them with {self.ood_rows:,} such rows.")
        return "\n".join(rows) + "\n"

    def _limits(self) -> str:
        said = [
            "- The scores hold for rows like those measured; where data drift, calibration goes first.",
            "- Members share one frozen backbone. What it cannot tell apart, no member can, and none doubts it.",
            "- Adapters were trained on the weights with the sha256 above; on others they mean nothing.",
        ]
        if not self.sha256:
            said.pop()
        if self.scores and not self.ood_rows:
            said.append("- Whether foreign inputs are noticed was not measured.")
        return "\n".join([*said, *([f"- {self.limits}"] if self.limits else [])]) + "\n"
