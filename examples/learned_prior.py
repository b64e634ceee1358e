"""The prior that a deep ensemble learns: point masses at its members, and what the training data make of their masses.

    python examples/learned_prior.py learned_prior.png

Eight members of 2-20-20-2 on two moons. Left: trained without a prior to maximum likelihood, weighed by the likelihood.
Right: trained under N(0, 1), so that members are MAP points, weighed by likelihood and prior.
"""

import sys

import matplotlib.pyplot as plt

import bayesemble as be


def main(path: str, epochs: int = 2000) -> None:
    split = be.data.load_split("two_moons", seed=0)
    data = (split.x_train, split.y_train)
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    cases = {"maximum likelihood": None, "MAP points under N(0, 1)": be.NormalPrior(std=1.0)}
    for axis, (title, prior) in zip(axes, cases.items(), strict=True):
        task = be.Task(lambda: be.models.mlp(2, [20, 20], 2), be.Categorical(), prior)
        method = be.DeepEnsemble(num_members=8, learning_rate=0.01, schedule="cosine")
        ensemble = be.fit(task, method, data, epochs=epochs, progress=False)
        be.plots.plot_learned_prior(be.learned_prior(ensemble, data, penalised=prior is not None), axis)
        axis.set_title(title)
        print(f"{title}: {be.diagnose(ensemble, data).about_theorem()}")
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "learned_prior.png")
