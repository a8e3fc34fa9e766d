"""Networks that make samples: images from noise, or features from noise and a label."""

from fedalloy.generators.conditional import ConditionalGenerator
from fedalloy.generators.features import FeatureGenerator
from fedalloy.generators.images import ImageGenerator

__all__ = ["ConditionalGenerator", "FeatureGenerator", "ImageGenerator"]
