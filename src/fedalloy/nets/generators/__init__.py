"""Networks that generate samples: images from noise, or features from noise and a label."""

from fedalloy.nets.generators.adversarial import PerceptronImages, adversarial_generator
from fedalloy.nets.generators.conditional import ConditionalGenerator
from fedalloy.nets.generators.dcgan import DCGAN
from fedalloy.nets.generators.features import FeatureGenerator, PerceptronFeatures
from fedalloy.nets.generators.images import ImageGenerator
from fedalloy.nets.generators.labelled_images import LabelledImageGenerator

__all__ = [
    "DCGAN",
    "ConditionalGenerator",
    "FeatureGenerator",
    "ImageGenerator",
    "LabelledImageGenerator",
    "PerceptronFeatures",
    "PerceptronImages",
    "adversarial_generator",
]
