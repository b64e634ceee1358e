"""How fast ensembles train, part by part:

    python benchmarks/speed.py                                   # every part
    python benchmarks/speed.py small dense --jax ~/jax/bin/python --peers ~/peers/bin/python --bde ~/bde/bin/python
    python benchmarks/speed.py growth --figure docs/figures/growth.svg
    python benchmarks/speed.py --memory repulsive:10             # peak memory of one method, in this process

Contestants take the same steps: same networks, rows, batches, loss and Adam. Their rounds alternate, so that a busy
machine slows all, and the best of each counts; what a fit costs once is left out but for `fixed`, `peers` and `yacht`.
Tables are Markdown.

Rivals that are not of this project run in interpreters of their own, which the options name, so that nothing of theirs
gets into this one:

    python -m venv jax    && jax/bin/pip install jax
    python -m venv bde    && bde/bin/pip install sklearn-contrib-bde
    python -m venv peers  && peers/bin/pip install torch==2.13.0
    peers/bin/pip install scikit-learn scipy einops seaborn rich "lightning<2.7" huggingface_hub safetensors
    peers/bin/pip install --no-deps torchensemble tabm rtdl_num_embeddings torch-uncertainty

The last line leaves out torchvision, which torchensemble and torch-uncertainty ask for, and of which there is no build
for this torch. Without an option, its columns stay empty.
"""

import argparse
import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # two threads that spin are worth nothing beside another process

import torch
from stopwatch.costs import fixed, implicit, interaction, posteriors
from stopwatch.growth import growth
from stopwatch.memory import memory, peak
from stopwatch.peers import peers
from stopwatch.race import Options
from stopwatch.steps import convolutions, dense, small, yacht

FUNCTIONS = (small, dense, convolutions, yacht, peers, interaction, fixed, growth, memory, posteriors, implicit)
PARTS = {function.__name__: function for function in FUNCTIONS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = "; ".join(f"{name}: {(function.__doc__ or '').strip()}" for name, function in PARTS.items())
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all, or some of these. {words}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", choices=("one", "all", "both"), default="both", help="in parts about steps")
    parser.add_argument("--jax", metavar="PYTHON", help="an interpreter that has JAX")
    parser.add_argument("--peers", metavar="PYTHON", help="one that has torchensemble, torch-uncertainty and tabm")
    parser.add_argument("--bde", metavar="PYTHON", help="one that has bde")
    parser.add_argument("--figure", metavar="FILE", help="where the plot of growth goes")
    parser.add_argument("--memory", metavar="WHAT", help="peak memory of plain:10 or METHOD:MEMBERS alone")
    arguments = parser.parse_args()
    if arguments.memory:
        print(f"{peak(arguments.memory):.1f} MiB")
        return
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    counts = {"one": (1,), "all": (torch.get_num_threads(),), "both": (1, torch.get_num_threads())}[arguments.threads]
    given = (arguments.rounds, arguments.jax, arguments.peers, arguments.bde, tuple(dict.fromkeys(counts)))
    options = Options(*given, arguments.figure)
    for name in arguments.parts or PARTS:
        PARTS[name](options)


if __name__ == "__main__":
    main()
