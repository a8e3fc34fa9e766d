"""Evaluate the heads of many clients at once, with one batched product."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedalloy.nets.models.base import FeatureNet

_SIMPLE = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.Identity, nn.Flatten, nn.Dropout)


Note = Callable[[Tensor, int], None]


def stacked_heads(
    net: FeatureNet, models: Sequence[Mapping[str, Tensor]], note: Note | None = None, *, last: bool = False
) -> Callable[[Tensor], Tensor]:
    """Combine the heads of several models of one architecture into a function from features to logits (K, B, classes).

    Linear layers become one batched product; a head with other layers is evaluated model by model. The heads are
    constants in eval mode: gradients only flow to the features. `note` is told the answers and the multiply-adds of a
    product, which no layer of the network sees. With `last`, only the output layers answer, to projected samples.

    >>> net = FeatureNet(nn.Sequential(), nn.Sequential(nn.Linear(3, 2)), (3,))
    >>> stacked_heads(net, [net.state_dict(), net.state_dict()])(torch.zeros(5, 3)).shape
    torch.Size([2, 5, 2])
    """
    first = len(net.head) - 1 if last else 0
    layers = {i: layer for i, layer in enumerate(net.head) if i >= first}
    if all(isinstance(layer, (nn.Linear, *_SIMPLE)) for layer in layers.values()):
        return _products(layers, models, note)
    part, start = (net.head[-1], f"head.{first}.") if last else (net.head, "head.")
    heads = [{n.removeprefix(start): t.detach() for n, t in m.items() if n.startswith(start)} for m in models]
    part.eval()
    return lambda z: torch.stack([functional_call(part, head, (z,)) for head in heads])


def _products(
    layers: Mapping[int, nn.Module], models: Sequence[Mapping[str, Tensor]], note: Note | None
) -> Callable[[Tensor], Tensor]:
    weights, biases = {}, {}
    for i, layer in layers.items():
        if isinstance(layer, nn.Linear):
            stack = torch.stack([m[f"head.{i}.weight"].detach() for m in models]).transpose(1, 2)
            weights[i] = stack.contiguous()
            with_bias = layer.bias is not None
            rows = [m[f"head.{i}.bias"].detach() if with_bias else stack.new_zeros(stack.shape[2]) for m in models]
            biases[i] = torch.stack(rows)[:, None]

    def logits(z: Tensor) -> Tensor:
        x = z[None]  # the first linear layer adds dimension K; before it, all models share the values
        for i, layer in layers.items():
            if isinstance(layer, nn.Linear):
                shared = x.expand(len(models), *x.shape[1:]) if len(x) == 1 else x
                x = torch.baddbmm(biases[i], shared, weights[i])
            elif isinstance(layer, nn.Flatten):
                x = x.flatten(2)
            elif not isinstance(layer, nn.Dropout):
                x = layer(x.clone() if getattr(layer, "inplace", False) else x)  # do not modify the caller's features
        answers = x.expand(len(models), *x.shape[1:])
        if note is not None:
            note(answers, len(z) * sum(stack.numel() for stack in weights.values()))
        return answers

    return logits
