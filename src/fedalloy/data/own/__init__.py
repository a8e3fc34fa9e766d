"""A user's own files, in a simulation and at a real site: tables, arrays, images, Hugging Face folders."""

from fedalloy.data.own.read import read_own
from fedalloy.data.own.wanted import Format, Own, Wanted

__all__ = ["Format", "Own", "Wanted", "read_own"]
