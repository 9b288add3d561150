"""The one part of the build that pyproject.toml cannot say: a few inner loops in C, for whoever has a compiler.

Optional: without one the installation goes on, and their Python twins are taken. One binary serves Python
3.11 and later (the stable ABI).
"""

from __future__ import annotations

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            f"anabranch.{part.replace('/', '.')}._native",
            [f"src/anabranch/{part}/_native.c"],
            py_limited_api=True,
            optional=True,
        )
        for part in ("protocol", "protocol/codec", "storage")
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
