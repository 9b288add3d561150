"""Anabranch: a durable message broker in Python that stock Pulsar clients use unchanged.

Importing the package is cheap on purpose: it loads nothing but the error root.
"""

from __future__ import annotations

from anabranch.model.errors import Error

__version__ = "0.1.0.dev0"

__all__ = ["Error", "__version__"]
