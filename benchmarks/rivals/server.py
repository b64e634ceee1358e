"""What every rival's script does: it sets up a case, then trains when it is told to, and answers how long that took.

The scripts need only numpy and what they are about; nothing of this project is imported.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Train = Callable[[int], None]
"""Trains for so many epochs, from the start or from where it stands; the work is done when it returns."""


def serve(make: Callable[[dict[str, Any], np.ndarray, np.ndarray], Train]) -> None:
    """`make(case, x, y)` sets a case up. Each line of standard input is a number of epochs, each answer its seconds."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no answer
    folder = Path(sys.argv[1])
    case, rows = json.loads((folder / "case.json").read_text()), np.load(folder / "rows.npz")
    x, y = rows["x"], rows["y"]

    def answer(work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        made = work()
        print(json.dumps(time.perf_counter() - start), file=answers, flush=True)
        return made

    def first() -> Train:
        train = make(case, x, y)
        train(1)
        return train

    train = answer(first)  # what is compiled is compiled here
    for line in sys.stdin:
        answer(lambda epochs=int(line): train(epochs))
