"""Scales of channels as part of weights: the same numbers, and no copy of the image."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.lowered_networks import agrees, imported, names


class _Excited(nn.Module):
    """Squeeze and excitation between a depthwise convolution and a dense one."""

    def __init__(self, channels: int, out: int, size: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.squeeze, self.excite = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)
        self.last = nn.Conv2d(channels, out, size, padding=size // 2)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        scale = torch.sigmoid(self.excite(torch.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        out: Tensor = self.last(y * scale)
        return out


@pytest.mark.parametrize("size", [1, 3])
def test_the_image_is_not_scaled(size: int) -> None:
    torch.manual_seed(0)
    lowered, network = imported(_Excited(16, 8, size), torch.randn(1, 3, 64, 64))
    assert lowered.left_out == ()
    multiplied = [task.workload.name for task in lowered.tasks if "multiply" in task.workload.name]
    assert len(multiplied) == 1
    assert "32x32" not in multiplied[0]
    agrees(lowered, network)


@pytest.mark.parametrize(("images", "side", "out"), [(2, 64, 8), (1, 6, 64)], ids=["images", "small"])
def test_several_images_and_large_weights_keep_theirs(images: int, side: int, out: int) -> None:
    torch.manual_seed(0)
    lowered, network = imported(_Excited(16, out), torch.randn(images, 3, side, side))
    extent = f"{images}x{side // 2}x{side // 2}x16" if images > 1 else f"{side // 2}x{side // 2}x16"
    assert any("multiply" in task.workload.name and extent in task.workload.name for task in lowered.tasks)
    agrees(lowered, network)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_16_bits_stay_constant(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    lowered, _ = imported(_Excited(16, 8).to(dtype), torch.randn(1, 3, 64, 64).to(dtype))
    assert any("multiply" in task.workload.name and "32x32" in task.workload.name for task in lowered.tasks)


class _Read(_Excited):
    """The scaled image is a result too."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        y = torch.relu(self.first(x))
        y = y * torch.sigmoid(self.excite(torch.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return y, self.last(y)


def test_a_scaled_image_that_is_read_elsewhere_is_scaled_once() -> None:
    torch.manual_seed(0)
    lowered, network = imported(_Read(16, 8), torch.randn(1, 3, 64, 64))
    assert sum("multiply" in name for name in names(lowered)) == 1
    agrees(lowered, network)
