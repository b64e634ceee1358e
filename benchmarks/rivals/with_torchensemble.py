"""TorchEnsemble: `VotingClassifier` and `VotingRegressor`, trained by their own `fit`."""

from networks import criterion, loader, network
from server import serve
from torchensemble import VotingClassifier, VotingRegressor


def make(case, x, y):
    sizes, batches = case["sizes"], loader(case, x, y)

    def train(epochs):
        kind = VotingClassifier if sizes[-1] > 1 else VotingRegressor
        ensemble = kind(estimator=network(sizes), n_estimators=case["members"], cuda=False)
        ensemble.set_criterion(criterion(sizes))
        ensemble.set_optimizer("Adam", lr=1e-3)
        ensemble.fit(batches, epochs=epochs, log_interval=10**9, save_model=False)

    return train


if __name__ == "__main__":
    serve(make)
