"""Lets `my_module:MyEnv` name a file of the user's folder, in every process of a run."""

from __future__ import annotations

import importlib
import sys

OUR_PACKAGES = ("repertory", "buffer_server", "actors", "learner", "services")


def make_importable(*folders: str) -> None:
    """Our packages have plain names that such a folder may use too: ours are imported first, and
    the folder comes last in the search, so that neither takes the other's place by accident.
    """
    for package in OUR_PACKAGES:
        importlib.import_module(package)
    sys.path += [folder for folder in folders if folder not in sys.path]
