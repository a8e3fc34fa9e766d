"""fedalloy: federated learning when clients differ, by knowledge distillation and fusion."""

__version__ = "0.1.0"
