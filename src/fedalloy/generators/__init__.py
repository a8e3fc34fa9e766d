"""Networks that make samples: images from noise, or features from noise and a label."""

from fedalloy.generators.adversarial import adversarial_generator
from fedalloy.generators.conditional import ConditionalGenerator
from fedalloy.generators.features import FeatureGenerator
from fedalloy.generators.images import ImageGenerator
from fedalloy.generators.labelled_images import LabelledImageGenerator

__all__ = [
    "ConditionalGenerator",
    "FeatureGenerator",
    "ImageGenerator",
    "LabelledImageGenerator",
    "adversarial_generator",
]
