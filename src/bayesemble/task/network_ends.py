"""Where a network takes its inputs in and where it gives its outputs: found by running it on a few rows."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from bayesemble.core import seeds
from bayesemble.core.types import Inputs, Leaves, tensors_of

_LOOKUPS = ("Embedding", "Gather", "Index", "Take")  # these pick by numbers that autograd does not list as an input
_PARAMETRIZED = re.compile(r"(^|\.)parametrizations(\.|$)")


@dataclass(frozen=True)
class Ends:
    """Names of layers at the ends of a network, in its order. A layer owns parameters itself; "" is the network."""

    inputs: tuple[str, ...]
    """Layers that are called with the inputs; if the inputs are transformed before, the layer that is called first."""
    outputs: tuple[str, ...]
    """Layers whose parameters come last on a path to the output."""


def find_ends(module: nn.Module, inputs: Inputs, run: Callable[[Leaves], Tensor]) -> Ends:
    """Run a network once and see which layers stand at its ends.

    A parameter that layers share counts for the one of them that is called last: for the head of a language model, not
    for its embedding.

    Args:
        module: The network.
        inputs: The rows that `run` puts into the network.
        run: Runs the network in eval mode with the parameters it is given (all real ones, frozen ones too, by their
            names in `named_parameters`), and returns the output.
    """
    real = {name: leaf for name, leaf in module.named_parameters() if leaf.is_floating_point()}
    device = next((leaf.device for leaf in tensors_of(inputs)), torch.device("cpu"))  # the module may be elsewhere
    leaves = {name: leaf.detach().to(device).requires_grad_() for name, leaf in real.items()}
    layers = parameters_by_layer(module)
    with seeds.TorchStream(0), torch.enable_grad(), _recorded_calls(module, list(layers), inputs) as calls:
        output = run(leaves)
    owner = _owners(layers, [layer for layer, _ in calls])
    first, last = ({owner[name] for name in names} for names in _first_and_last(output, leaves))
    # A layer that hands its inputs to layers inside itself counts only if its own parameters meet the inputs too.
    outer = {around for layer, _ in calls for around in _around(layer)} - first
    calls = [(layer, reads) for layer, reads in calls if layer not in outer]
    reading = {layer for layer, reads in calls if reads} or {layer for layer, _ in calls[:1]}
    return Ends(tuple(layer for layer in layers if layer in reading), tuple(layer for layer in layers if layer in last))


def parameters_by_layer(module: nn.Module) -> dict[str, list[str]]:
    """Names of the parameters that each layer owns itself, in the order of the network.

    A parameter that layers share is listed with each of them, by the name that it has in `named_parameters`.
    """
    known = {id(parameter): name for name, parameter in module.named_parameters()}
    found: dict[str, list[str]] = {}
    for prefix, layer in module.named_modules():
        for parameter in layer.parameters(recurse=False):
            found.setdefault(_without_parametrization(prefix), []).append(known[id(parameter)])
    return found


def layer_of(name: str) -> str:
    """The layer that a parameter belongs to by its name, also if the layer makes its weight from it (weight norm)."""
    return _without_parametrization(name.rpartition(".")[0])


def _without_parametrization(prefix: str) -> str:
    return _PARAMETRIZED.split(prefix)[0]


def _around(layer: str) -> list[str]:
    """The names of the modules that a layer is inside of: "", "body" and "body.0" for `body.0.conv`."""
    parts = layer.split(".")
    return [".".join(parts[:depth]) for depth in range(len(parts))] if layer else []


@contextmanager
def _recorded_calls(module: nn.Module, layers: list[str], inputs: Inputs) -> Iterator[list[tuple[str, bool]]]:
    """List each call of a layer while the block runs, and whether it was called with (a view of) the inputs."""
    given = {tensor.untyped_storage().data_ptr() for tensor in tensors_of(inputs)}
    calls: list[tuple[str, bool]] = []

    def hook(name: str) -> Callable[..., None]:
        def record(_: nn.Module, *arguments: object) -> None:
            calls.append((name, bool(given & {t.untyped_storage().data_ptr() for t in tensors_of(arguments)})))

        return record

    modules = {name: module.get_submodule(name) for name in layers}
    handles = [layer.register_forward_pre_hook(hook(name), with_kwargs=True) for name, layer in modules.items()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _owners(layers: dict[str, list[str]], calls: list[str]) -> dict[str, str]:
    """The layer that each parameter counts for: of those that own it the one called last, else the first."""
    order = {layer: position for position, layer in enumerate(calls)}
    owner: dict[str, str] = {}
    for layer, names in layers.items():
        for name in names:
            if name not in owner or order.get(layer, -1) > order.get(owner[name], -1):
                owner[name] = layer
    return owner


def _first_and_last(output: Tensor, leaves: Leaves) -> tuple[set[str], set[str]]:
    """Names of the parameters that meet the inputs first, and of those that come last on a path to the output.

    In the graph that autograd keeps, some nodes are made of parameters alone, such as a transposed weight. Where they
    meet another, parameters act: last, if none act between there and the output; first, if on what none have acted on.
    Of nn.Sequential(nn.Linear, nn.ReLU, nn.Linear), for example:

        0.weight -> transposed --\
        0.bias  ------------------> addmm -> relu -> addmm -> output
        inputs  -----------------/                   /
        2.bias, 2.weight -> transposed -------------/

    The first addmm gives the first parameters (0.weight, 0.bias), the second, seen from the output, the last.
    """
    if not output.requires_grad:
        return set(), set()
    root, known = get_gradient_edge(output).node, {id(leaf): name for name, leaf in leaves.items()}
    pure: dict[Node, set[str]] = {}  # the parameters that a node is made of; none if there is anything else in it
    acting: dict[Node, set[str]] = {}
    first: set[str] = set()
    for node in _inputs_before_users(root):
        inputs = [source for source, _ in node.next_functions]
        acting[node] = set().union(*(pure[source] for source in inputs if source))
        alone = all(source and pure[source] for source in inputs) and not node.name().startswith(_LOOKUPS)
        pure[node] = acting[node] if alone else set()
        if hasattr(node, "variable"):  # a leaf: a parameter, or an input with a gradient of its own
            name = known.get(id(node.variable))
            pure[node] = acting[node] = set() if name is None else {name}
        elif not alone and all(source is None or pure[source] for source in inputs):
            first |= acting[node]
    last: set[str] = set()
    seen, waiting = {root}, [root]
    while waiting:
        node = waiting.pop()
        last |= acting[node]
        deeper = {source for source, _ in node.next_functions if source} if not acting[node] else set()
        waiting += deeper - seen
        seen |= deeper
    return first, last


def _inputs_before_users(root: Node) -> list[Node]:
    """All nodes of a graph, each after those that it is computed from."""
    order: list[Node] = []
    seen: set[Node] = set()
    waiting = [(root, False)]
    while waiting:
        node, done = waiting.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            waiting += [(node, True), *((source, False) for source, _ in node.next_functions if source)]
    return order
