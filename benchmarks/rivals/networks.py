"""The network, loss and batches that the rivals in torch share."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def network(sizes):
    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def criterion(sizes):
    return nn.CrossEntropyLoss() if sizes[-1] > 1 else nn.MSELoss()


def loader(case, x, y):
    rows = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return DataLoader(rows, batch_size=case["batch"], shuffle=True)
