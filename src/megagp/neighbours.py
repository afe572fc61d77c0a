"""The training points nearest to new points, in the metric that the kernel measures with."""

from __future__ import annotations

import torch
from scipy.spatial import cKDTree
from torch import Tensor

from megagp.kernels import Kernel, Linear, Stationary
from megagp.kernels.composite import Composite

# Up to this many columns a tree visits few points. Measured with 256 neighbours of Gaussian
# points: at 8 columns the two take the same time for n = 30,000 and n = 300,000.
TREE_MAX_D = 8


def metric_features(kernel: Kernel, X: Tensor) -> Tensor:
    """Points whose Euclidean distance says how near the kernel takes them to be, n x f.

    The features of a kernel that has them (inputs / lengthscale); those of all parts of a sum
    or product side by side, so that the shortest lengthscale counts most; X itself for a
    kernel without any.
    """
    with torch.no_grad():
        parts = _features(kernel, X)
    return torch.cat(parts, dim=1) if parts else X


def _features(kernel: Kernel, X: Tensor) -> list[Tensor]:
    if isinstance(kernel, Composite):
        return [F for part in kernel.parts for F in _features(part, X)]
    return [kernel.features(X)] if isinstance(kernel, Stationary | Linear) else []


class Neighbours:
    """Nearest rows of `points` (n x f): a k-d tree in few columns, else every distance in tiles.

    Cost of a query of t points: O(t m log n) by the tree, O(t n f) by tiles, which compare in
    float32 and so may confuse points at nearly the same distance.
    """

    def __init__(self, points: Tensor, *, memory_budget: int = 64 * 2**20) -> None:
        self._n, f = points.shape
        self._memory_budget = memory_budget
        self._tree = cKDTree(points.cpu().numpy()) if self._n and f <= TREE_MAX_D else None
        # Centred in float64 before the cast: an offset would use up the digits of float32.
        self._centre = points.mean(dim=0) if self._n else points.new_zeros(f)
        self._points = points[:0].float() if self._tree else (points - self._centre).float()
        self._squares = self._points.square().sum(dim=1)

    def nearest(self, points: Tensor, m: int) -> Tensor:
        """Indices of the m nearest (all n, if those are fewer), nearest first: t x min(m, n)."""
        m = min(m, self._n)
        if m == 0:
            return torch.empty(len(points), 0, dtype=torch.long, device=points.device)
        if self._tree is not None:
            # Threads of its own, as many as torch may use.
            _, found = self._tree.query(
                points.cpu().numpy(), range(1, m + 1), workers=torch.get_num_threads()
            )
            return torch.from_numpy(found).to(points.device, torch.long)
        # A tile of distances in float32, and what sorting it takes.
        rows = max(1, self._memory_budget // (16 * self._n))
        tiles = chunks(len(points), rows)
        return torch.cat([self._nearest_in_tile(points[tile], m) for tile in tiles])

    def _nearest_in_tile(self, points: Tensor, m: int) -> Tensor:
        # |x|^2 - 2 x.z orders the rows as |x - z|^2 does.
        Z = (points - self._centre).float()
        D = torch.addmm(self._squares, Z, self._points.T, alpha=-2)
        return D.topk(m, dim=1, largest=False).indices


def chunks(t: int, size: int) -> list[slice]:
    """0..t in runs of `size`, the last one shorter."""
    return [slice(start, min(start + size, t)) for start in range(0, t, size)]
