"""TabM's packed layers: the linear layers of all members in one module, trained by a loop, as in its documentation."""

import tabm
import torch
from networks import criterion, network
from server import serve
from torch import nn


def make(case, x, y):
    sizes, members = case["sizes"], case["members"]
    x, y, loss = torch.from_numpy(x), torch.from_numpy(y), criterion(sizes)

    def train(epochs):
        packed = network(sizes)
        tabm.ensemble_linear_layers_(packed, k=members)
        model = nn.Sequential(tabm.EnsembleView(k=members), packed)
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).split(case["batch"]):
                optimiser.zero_grad()
                outputs = model(x[rows])  # (row, member, output)
                targets = y[rows].repeat_interleave(members, dim=0)
                (members * loss(outputs.flatten(0, 1), targets)).backward()
                optimiser.step()

    return train


if __name__ == "__main__":
    serve(make)
