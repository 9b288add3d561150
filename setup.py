"""The C extensions, which pyproject.toml cannot declare: a few inner loops in C.

They are optional. Without a C compiler the installation succeeds and the Python implementations are used. One binary
serves Python 3.11 and later (stable ABI).
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
