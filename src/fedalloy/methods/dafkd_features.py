"""DaFKD whose generator makes features instead of images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from fedalloy.base.options import option
from fedalloy.base.tree import Tree
from fedalloy.federation.core import Client, Federation, State, method
from fedalloy.knowledge.domains import TwoHeads, TwoHeadsOnFeatures
from fedalloy.methods.dafkd import CARD, DaFKD
from fedalloy.nets.generators import FeatureGenerator
from fedalloy.nets.models import FeatureNet, in_two_parts

DISTILS = CARD.distils.replace("images", "features")
QUICK = {name: value for name, value in CARD.quick.items() if name != "generator_width"}


@method(
    "dafkd-features",
    label="DaFKD (features)",
    card=replace(CARD, brief="DaFKD on generated features", role="control", distils=DISTILS, quick=QUICK),
)
class DaFKDFeatures(DaFKD):
    """The generator makes what enters the classifier's head, as the paper suggests for privacy.

    It is FedGen's generator. The discriminator tells features from features, and only the average's head is distilled.

    >>> DaFKDFeatures().generates
    True
    """

    pseudo_samples: Literal["features"] = option(  # type: ignore[assignment]  # neither of DaFKD's two
        "features", "its generator makes features"
    )

    def two_heads(self, where: Client | Federation, kind: type[TwoHeads] = TwoHeadsOnFeatures) -> TwoHeads:
        """Classifier and discriminator, which both see features."""
        return super().two_heads(where, kind)

    def new_generator(self, where: Client | Federation) -> nn.Module:
        """The generator of features before any training, the same for all."""
        net = in_two_parts(where.build(), self.name)
        return where.generator(partial(FeatureGenerator, net.feature_shape, where.classes, self.noise))

    def answers(self, net: FeatureNet, x: Tensor) -> Tensor:
        """A classifier's logits for features."""
        logits: Tensor = net.head(x)
        return logits

    def pictures(self, s: State, memories: Mapping[int, Tree]) -> Mapping[str, Any]:
        """As in DaFKD, without images."""
        return {**super().pictures(s, memories), "generated": "the generator makes features"}
