"""Networks that generate samples: images from noise, or features from noise and a label."""

from fedalloy.nets.generators.adversarial import adversarial_generator
from fedalloy.nets.generators.conditional import ConditionalGenerator
from fedalloy.nets.generators.features import FeatureGenerator, feature_generator
from fedalloy.nets.generators.images import ImageGenerator
from fedalloy.nets.generators.labelled_images import LabelledImageGenerator

__all__ = [
    "ConditionalGenerator",
    "FeatureGenerator",
    "ImageGenerator",
    "LabelledImageGenerator",
    "adversarial_generator",
    "feature_generator",
]
