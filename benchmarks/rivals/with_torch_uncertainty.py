"""TorchUncertainty: `deep_ensembles` in its routines, trained by Lightning.

It imports torchvision and timm for its image data, which nothing here uses: empty modules stand in for them.
"""

import importlib.abc
import importlib.machinery
import logging
import sys
import types

import torch
from networks import criterion, loader, network
from server import serve

ABSENT = ("torchvision", "timm")


class Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Empty

    def __or__(cls, other):
        return cls

    def __ror__(cls, other):
        return cls


class Empty(metaclass=Anything):
    def __init__(self, *args, **kwargs):
        pass


class Standin(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return type("Module", (types.ModuleType,), {"__getattr__": lambda self, name: getattr(Empty, name)})(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Standin())

from lightning.pytorch import Trainer  # noqa: E402
from torch_uncertainty.methods import deep_ensembles  # noqa: E402
from torch_uncertainty.routines import ClassificationRoutine, RegressionRoutine  # noqa: E402
from torch_uncertainty.transforms import RepeatTarget  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


def make(case, x, y):
    sizes, members = case["sizes"], case["members"]
    classes = sizes[-1] if sizes[-1] > 1 else None
    batches = loader(case, x, y if classes else y[:, 0])  # it adds the axis of a single output itself

    def train(epochs):
        task = "classification" if classes else "regression"
        options = {} if classes else {"probabilistic": False}
        model = deep_ensembles(network(sizes), num_estimators=members, task=task, **options)
        recipe = torch.optim.Adam(model.parameters(), lr=1e-3)
        shared = {"model": model, "loss": criterion(sizes), "is_ensemble": True, "optim_recipe": recipe}
        shared["format_batch_fn"] = RepeatTarget(num_repeats=members)
        if classes:
            routine = ClassificationRoutine(num_classes=classes, **shared)
        else:
            routine = RegressionRoutine(output_dim=1, **shared)
        Trainer(accelerator="cpu", max_epochs=epochs, **QUIET).fit(routine, batches)

    return train


if __name__ == "__main__":
    serve(make)
