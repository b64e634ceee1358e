"""The tutorial on pretrained networks runs as it stands, on a tiny transformer and a made-up language."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import bayesemble as be
from bayesemble.core.seeds import scoped

PAGE = (Path(__file__).parents[1] / "docs" / "pretrained.md").read_text()
CLASSES, WORDS = 4, 40


class Transformer(nn.Module):
    """An encoder and a head, with the inputs and outputs that such models have."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.ModuleDict({"words": nn.Embedding(WORDS, 16), "layer": layer})
        self.head = nn.Linear(16, CLASSES)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.unsqueeze(-1)
        found = self.encoder["layer"](self.encoder["words"](input_ids), src_key_padding_mask=attention_mask == 0)
        return SimpleNamespace(logits=self.head((found * mask).sum(1) / mask.sum(1)))


def requests(num, generator, foreign=False):
    """Rows of unequal length: words of their class among others; foreign ones have words that no class has."""
    rows = []
    for _ in range(num):
        length, label = (
            int(torch.randint(low, high, (1,), generator=generator)) for low, high in ((3, 8), (0, CLASSES))
        )
        own = 30 + torch.randint(0, 10, (length,), generator=generator)
        if not foreign:
            words = 1 + 5 * label + torch.randint(0, 5, (length,), generator=generator)
            common = 21 + torch.randint(0, 9, (length,), generator=generator)
            own = torch.where(torch.rand(length, generator=generator) < 0.5, words, common)
        rows.append({"input_ids": own, "labels": label})
    return rows


def padded(rows):
    ids = nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    return {
        "input_ids": ids,
        "attention_mask": (ids > 0).long(),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }


def fine_tuned(rows):
    with scoped(0):
        network, batch = Transformer(), padded(rows)
        optimizer = torch.optim.Adam(network.parameters(), 0.01)
        for _ in range(25):
            optimizer.zero_grad()
            logits = network(batch["input_ids"], batch["attention_mask"]).logits
            nn.functional.cross_entropy(logits, batch["labels"]).backward()
            optimizer.step()
    return network


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What is there after the tutorial has run."""
    code = re.search(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[1]
    assert len(code.strip().splitlines()) < 25
    generator = torch.Generator().manual_seed(0)
    parts = {name: requests(num, generator) for name, num in (("train", 120), ("held_out", 200), ("test", 200))}
    foreign = padded(requests(200, generator, foreign=True))
    given = {
        "network": fine_tuned(parts["train"]),
        "train": DataLoader(parts["train"], batch_size=24, shuffle=True, collate_fn=padded),
        "held_out": padded(parts["held_out"]),
        "test": padded(parts["test"]),
        "foreign": {name: values for name, values in foreign.items() if name != "labels"},
    }
    folder = tmp_path_factory.mktemp("tutorial")
    exec(code.replace('"answers"', repr(str(folder / "answers"))), given)
    return given | {"folder": folder}


def test_the_tutorial_comes_to_answers_that_know_what_they_do_not_know(names):
    test, foreign, ensembles = names["test"], names["foreign"], names["ensembles"]
    scores = {name: one.evaluate(test, ood=foreign) for name, one in ensembles.items()}
    assert all(found["accuracy"] > 0.8 for found in scores.values())
    assert scores["five heads"]["ood_auroc_epistemic"] > 0.75
    assert all(scores[name]["nll"] < scores["the network"]["nll"] for name in ("Laplace", "five heads"))
    answers, labels = names["answers"], test["labels"]
    assert be.metrics.nll(answers, labels) < scores["five heads"]["nll"] + 0.02
    decision = names["decision"]
    assert 0 < float(decision.answered.double().mean()) <= 1
    wrong = (answers.answers != labels)[decision.answered]
    assert float(wrong.double().mean()) <= 0.1


def test_the_encoder_is_there_once_and_the_network_stays_as_it_was(names):
    members = names["ensembles"]["five heads"].state.members
    assert members.shared == {name for name, _ in names["network"].named_parameters() if name.startswith("encoder.")}
    loaded = be.load(names["folder"] / "answers", names["network"])
    torch.testing.assert_close(loaded.predict(names["test"]).probs, names["ensemble"].predict(names["test"]).probs)
