"""The one part of the build that pyproject.toml cannot say: the codec's inner loops in C, for whoever has a compiler.

Optional: without one the installation goes on, and `anabranch.codec` takes its Python twin. One binary serves Python
3.11 and later (the stable ABI).
"""

from __future__ import annotations

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("anabranch.codec._native", ["src/anabranch/codec/_native.c"], py_limited_api=True, optional=True)
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
