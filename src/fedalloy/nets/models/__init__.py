"""The model zoo: the papers' networks, by name.

>>> net = create("simple-cnn", classes=10, channels=3, size=32)
>>> parameter_count(net), net.feature_shape
(92626, (16, 5, 5))
"""

# Importing a family registers its networks.
from fedalloy.nets.models import (  # noqa: F401
    fedmd_cnn,
    knfu_cnn,
    lenet5,
    mlp,
    resnet8,
    resnet11,
    selective_cnn,
    simple_cnn,
    wrn,
)
from fedalloy.nets.models.base import (
    FeatureNet,
    ModelFactory,
    create,
    in_two_parts,
    model,
    models,
    options_of,
    parameter_count,
)

__all__ = ["FeatureNet", "ModelFactory", "create", "in_two_parts", "model", "models", "options_of", "parameter_count"]
