"""Steps of other libraries, as functions of uint8 tensors ``[3, H, W]``: Albumentations, PIL, timm, policies.

Albumentations and timm are recognised by the modules of their classes and never imported here.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..augment.policies import Policy, run_policies
from .torchvision import Step, name_of

_TIMM = ("timm.data.auto_augment", "timm.data.transforms")


@dataclass(frozen=True)
class Albumentations:
    """A composition or transform of Albumentations: takes arrays [H, W, 3] and returns a dict.

    Its generators are its own: ``seed`` replaces them, all by the same two, as its compositions share them.
    """

    step: Any

    def __call__(self, image: Tensor) -> Any:
        """Return the result for an image as a tensor [C, H, W], without a copy if the step makes tensors."""
        return self.image_of(self.step(image=np.ascontiguousarray(image.permute(1, 2, 0).numpy())))

    @staticmethod
    def image_of(results: Any) -> Tensor:
        """Return the image in the results of the step as a tensor [C, H, W]."""
        found = results["image"]
        if isinstance(found, Tensor):  # by ToTensorV2
            return found
        array = found if found.ndim == 3 else found[..., None]
        return torch.from_numpy(np.ascontiguousarray(array)).permute(2, 0, 1)

    def seed(self, seed: int) -> None:
        """Seed the generators of the step."""
        if hasattr(self.step, "set_random_state"):  # old versions draw from the global ones
            self.step.set_random_state(np.random.default_rng(seed), random.Random(seed))


@dataclass(frozen=True)
class FromPil:
    """ToTensor or PILToTensor, which may also get the tensor that the decoder made."""

    step: Any

    def __call__(self, image: Any) -> Any:
        """Convert a PIL image; return the levels of a tensor, divided by 255 for ToTensor."""
        if not isinstance(image, Tensor):
            return self.step(image)
        has_levels = name_of(self.step) == "ToTensor" and image.dtype == torch.uint8
        return image.float().div(255) if has_levels else image


@dataclass(frozen=True)
class OnPil:
    """A step of timm on PIL images, as in timm: uint8 tensors [3, H, W] are converted before and after."""

    step: Any

    def __call__(self, image: Any) -> Any:
        """Return the result for an image: a tensor if the step returns a PIL image."""
        if not isinstance(image, Tensor) or image.dtype != torch.uint8 or image.shape[:-2] != (3,):
            return self.step(image)
        found = self.step(Image.fromarray(image.permute(1, 2, 0).numpy()))
        is_image = isinstance(found, Image.Image)
        return torch.from_numpy(np.array(found)).permute(2, 0, 1) if is_image else found


@dataclass(frozen=True)
class OnePolicy:
    """A policy of tarpeg between other steps: on one image, with draws of numpy's generator."""

    step: Policy

    def __call__(self, image: Tensor) -> Tensor:
        """Return the distorted image."""
        return run_policies([self.step], image[None], lambda _, count: np.random.random((1, count)))[0]


def adapted(step: Any) -> Step:
    """Return a step as a function of uint8 tensors [3, H, W]."""
    if isinstance(step, Policy):
        return OnePolicy(step)
    if any(base.__module__.startswith("albumentations.core.") for base in type(step).__mro__):
        return Albumentations(step)
    if name_of(step) in ("ToTensor", "PILToTensor"):
        return FromPil(step)
    return OnPil(step) if type(step).__module__ in _TIMM else step


def original(step: Any) -> Any:
    """Return a step in Python as the user gave it."""
    return step.step if isinstance(step, (Albumentations, FromPil, OnPil, OnePolicy)) else step
