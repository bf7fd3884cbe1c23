"""What was drawn for the rows of a batch, and how it moves the points of an image: numbers only.

Coordinates are those of pixel edges: pixel i covers [i, i + 1), and an image of width w lies between 0 and w.
Points are (x, y), x to the right and y down; sizes and boxes begin with the height and the top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .rng import Float64, Int64
from .steps import Steps, joined_steps

Bool = npt.NDArray[np.bool_]
Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class View:
    """What was drawn for one view of a batch: how row i of the images was made from its source.

    The box of the upright source is cut out, resized to ``size``, or to its place in it if there are
    ``places``, mirrored if ``flips``, and moved by ``affine``. ``matrices()`` and ``points()`` are all of it
    together. A row whose geometry is not known, such as a whole image that steps in Python crop, has the box
    (0, 0, 0, 0).

    Args:
        sizes: int32 [B, 2], (height, width) of each source in pixels, upright whatever the orientation in
            its EXIF data; (0, 0) if it is not known.
        boxes: int32 [B, 4], (top, left, height, width) in pixels of the upright source.
        flips: bool [B], whether the result is mirrored left to right.
        size: (height, width) of the results in pixels, the same for all rows.
        affine: float64 [B, 2, 3], how an augmentation moves points of the result, or None if it does not.
            It is computed only for a split with ``targets=``.
        places: int32 [B, 4], (top, left, height, width) of the part of the result that shows the box; the
            rest is padding. None: all of it. Of ``Patches``: (0, 0, height, width) of the image before it is
            cut into patches, and ``size`` is that of one column of all patches.
        drops_by_centre: Boxes whose centre is not inside of the crop are not visible: of ``RandomIoUCrop``.
            bool [B] in a mixture with other crops.
        batch_rows: int64 [n], of ``Mosaic`` and ``CopyPaste``, whose images are made of parts of several
            sources: all arrays have a row per part, n in all, and this is the row of the batch that it
            belongs to. The first part of each row is of the sample itself. Of ``Split(image="*.jpg")`` the
            parts are the images of the samples. None: one part per row.
        samples: int64 [n], number of the sample of each part; None without ``batch_rows``.
        is_pasted: Of the parts behind the first only objects are visible, which cover those of the first: of
            ``CopyPaste``.
        steps: The steps that ``affine`` is the product of, each with a frame of ``size``: what one of them
            moves out of its frame is lost, see ``shows``. None: one step at most.

    Example:
        >>> import numpy as np
        >>> sizes, boxes = np.array([[400, 600]]), np.array([[100, 200, 100, 200]])
        >>> view = tarpeg.View(sizes, boxes, np.array([True]), (50, 50))
        >>> view.points([[200, 100], [400, 200], [250, 150]]).tolist()  # corners of the box, and a point
        [[50.0, 0.0], [0.0, 50.0], [37.5, 25.0]]
    """

    sizes: Int32
    boxes: Int32
    flips: Bool
    size: tuple[int, int]
    affine: Float64 | None = None
    places: Int32 | None = None
    drops_by_centre: bool | Bool = False
    batch_rows: Int64 | None = None
    samples: Int64 | None = None
    is_pasted: bool = False
    steps: Steps | None = None

    def __len__(self) -> int:
        """Return the number of rows, those of all parts."""
        return len(self.flips)

    def row(self, row: int) -> View:
        """Return the view of one row of the batch: a view with B = 1, or with a row per part."""
        return self.rows([row])

    def rows(self, rows: npt.ArrayLike) -> View:
        """Return the view of some rows of the batch, by number or by a mask."""
        chosen, batch_rows, drops = np.asarray(rows), None, self.drops_by_centre
        if self.batch_rows is not None:
            wanted = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
            found = [np.flatnonzero(self.batch_rows == row) for row in wanted.tolist()]
            counts = np.array([len(each) for each in found], np.int64)
            batch_rows = np.repeat(np.arange(len(found)), counts)
            chosen = np.concatenate([*found, np.zeros(0, np.int64)])
        return View(
            sizes=self.sizes[chosen],
            boxes=self.boxes[chosen],
            flips=self.flips[chosen],
            size=self.size,
            affine=None if self.affine is None else self.affine[chosen],
            places=None if self.places is None else self.places[chosen],
            drops_by_centre=drops if isinstance(drops, bool) else drops_of(drops[chosen]),
            batch_rows=batch_rows,
            samples=None if self.samples is None else self.samples[chosen],
            is_pasted=self.is_pasted,
            steps=None if self.steps is None else self.steps.rows(chosen),
        )

    def parts(self) -> View:
        """Return a view in which each part is a row of its own."""
        return replace(self, batch_rows=None, samples=None, is_pasted=False)

    def put(self, row: int | slice, other: View) -> None:
        """Overwrite size, box, flip, place and affine of one row, or of several, by those of ``other``."""
        if self.batch_rows is not None:
            assert isinstance(row, int)
            self._put_parts(row, other)
            return
        rows = slice(row, row + 1) if isinstance(row, int) else row
        self.sizes[rows], self.boxes[rows], self.flips[rows] = other.sizes, other.boxes, other.flips
        drops = self.all_drops
        drops[rows] = other.all_drops
        object.__setattr__(self, "drops_by_centre", drops_of(drops))
        if self.places is None and other.places is not None:
            object.__setattr__(self, "places", self.all_places)
        if self.places is not None:
            self.places[rows] = other.all_places
        if self.affine is None and other.affine is not None:
            object.__setattr__(self, "affine", np.tile(np.eye(2, 3), (len(self), 1, 1)))
        if self.affine is not None:
            self._put_steps(slice(0, rows.start), other, slice(rows.stop, None))
            self.affine[rows] = np.eye(2, 3) if other.affine is None else other.affine

    def _put_steps(self, before: Any, other: View, after: Any) -> None:
        """Put the steps of another view between those of some rows before, and of some after them."""
        if self.steps is not None or other.steps is not None:
            own = self._all_steps
            object.__setattr__(
                self, "steps", joined_steps([own.rows(before), other._all_steps, own.rows(after)])
            )

    def _put_parts(self, row: int, other: View) -> None:
        assert self.batch_rows is not None
        before, after = (np.flatnonzero(each) for each in (self.batch_rows < row, self.batch_rows > row))
        self._put_steps(before, other, after)
        drops = drops_of(np.concatenate([self.all_drops[before], other.all_drops, self.all_drops[after]]))
        object.__setattr__(self, "drops_by_centre", drops)
        for name in ("sizes", "boxes", "flips", "affine", "places", "samples"):
            own = getattr(self, name)
            if own is not None:
                joined = np.concatenate([own[before], getattr(other, name), own[after]])
                object.__setattr__(self, name, joined)
        counts = np.bincount(self.batch_rows)
        counts[row] = len(other)
        object.__setattr__(self, "batch_rows", np.repeat(np.arange(len(counts)), counts))

    def forget(self, row: int) -> None:
        """Overwrite one row's box and affine: its geometry is not known."""
        self.boxes[row], self.flips[row] = 0, False
        if self.affine is not None:
            self.affine[row] = np.eye(2, 3)
        if self.steps is not None:
            self.steps.matrices[row] = np.eye(2, 3)

    def then(self, affine: Float64 | None, steps: Steps | None = None) -> View:
        """Return the view whose results are moved once more.

        Args:
            affine: float64 [B, 2, 3], matrices from points of the result to points of the result, such as
                those of ``Augment.geometry``; None: not moved.
            steps: The steps that they are the product of; None: they are one step.
        """
        if affine is None:
            return self
        after = Steps.of(affine) if steps is None else steps
        if self.batch_rows is not None:
            affine, after = affine[self.batch_rows], after.rows(self.batch_rows)
        before = np.eye(3)[None] if self.affine is None else _square(self.affine)
        moved = (_square(np.asarray(affine, np.float64)) @ before)[:, :2]
        return replace(self, affine=moved, steps=self._all_steps.then(after))

    @property
    def _all_steps(self) -> Steps:
        """``steps``, or the affine as one."""
        if self.steps is not None:
            return self.steps
        return Steps.none(len(self)) if self.affine is None else Steps.of(self.affine)

    @classmethod
    def whole(
        cls, source: tuple[int, int], size: tuple[int, int], count: int = 1, affine: Float64 | None = None
    ) -> View:
        """Return the view of whole images, resized and not mirrored.

        Args:
            source: (height, width) of all images.
            size: (height, width) of the results.
            count: Number of images.
            affine: float64 [count, 2, 3], see ``View``.
        """
        sizes = np.tile(np.array(source, np.int32), (count, 1))
        boxes = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
        return cls(sizes, boxes, np.zeros(count, np.bool_), size, affine)

    @property
    def is_known(self) -> Bool:
        """Which rows have a box: bool [B]."""
        return np.asarray((self.boxes[:, 2:] > 0).all(axis=1))

    @property
    def all_drops(self) -> Bool:
        """``drops_by_centre`` of each row: bool [B], a copy."""
        return np.array(np.broadcast_to(self.drops_by_centre, len(self)))

    @property
    def all_places(self) -> Int32:
        """``places``, or the whole result for each row: int32 [B, 4]."""
        if self.places is not None:
            return self.places
        return np.tile(np.array([0, 0, *self.size], np.int32), (len(self), 1))

    def matrices(self) -> Float64:
        """Return how points of each source move: float64 [B, 3, 3], for homogeneous points (x, y, 1).

        They map pixel edges of the upright source to pixel edges of the result, and include box, resize, flip
        and ``affine``.

        Raises:
            ValueError: The geometry of a row is not known.
        """
        matrices = self._unmoved()
        return matrices if self.affine is None else _square(self.affine) @ matrices

    def _unmoved(self) -> Float64:
        """Return ``matrices()`` without ``affine``."""
        self.check_known()
        top, left, height, width = self.boxes.astype(np.float64).T
        place_top, place_left, place_height, place_width = self.all_places.astype(np.float64).T
        x_scale, y_scale = place_width / width, place_height / height
        sign = np.where(self.flips, -1.0, 1.0)
        matrices = np.zeros((len(self), 3, 3))
        matrices[:, 0, 0] = sign * x_scale
        matrices[:, 0, 2] = place_left + np.where(self.flips, place_width, 0.0) - sign * x_scale * left
        matrices[:, 1, 1] = y_scale
        matrices[:, 1, 2] = place_top - y_scale * top
        matrices[:, 2, 2] = 1.0
        return matrices

    def points(self, points: npt.ArrayLike) -> Float64:
        """Move points of the source to points of the result.

        Args:
            points: (x, y) in pixels, [N, 2] of a view of one row, otherwise [B, N, 2].

        Returns:
            float64 of the same shape. Points outside the box are outside the result, unless ``affine`` moves
            them there: see ``shows``.

        Raises:
            ValueError: The points have another shape, or the geometry of a row is not known.
        """
        given = np.asarray(points, np.float64)
        if given.ndim == 1 and not given.size:  # of an image without points
            given = given.reshape(0, 2)
        fits = (given.ndim == 2 and len(self) == 1) or (given.ndim == 3 and len(given) == len(self))
        if not fits or given.shape[-1] != 2:
            raise ValueError(
                f"points must be (x, y), [N, 2] for a view of one row or [{len(self)}, N, 2], "
                f"got {list(given.shape)}"
            )
        matrices = self.matrices()
        moved = given @ matrices[:, :2, :2].transpose(0, 2, 1) + matrices[:, None, :2, 2]
        return moved.reshape(given.shape)

    def shows(self, points: npt.ArrayLike, rows: npt.ArrayLike | None = None) -> Bool:
        """Return which points of the source the result shows.

        They are in the box, from its left and upper edge up to but not including the others, in the result,
        and in the frame of each step of an augmentation between: what a step moves out of its frame is lost,
        also if the next one moves that place back.

        Args:
            points: (x, y) in pixels, [N, K, 2], or [K, 2] of a view of one row.
            rows: Row of each of the N, [N]; by default the only row.

        Returns:
            bool [N, K], or [K].

        Raises:
            ValueError: The geometry of a row is not known.

        Example:
            >>> import numpy as np
            >>> right, left = (np.array([[[1.0, 0.0, x], [0.0, 1.0, 0.0]]]) for x in (30, -30))
            >>> view = tarpeg.View.whole((100, 100), (100, 100)).then(right).then(left)
            >>> points = [[20, 50], [80, 50]]
            >>> view.points(points).tolist(), view.shows(points).tolist()
            ([[20.0, 50.0], [80.0, 50.0]], [True, False])
        """
        given = np.asarray(points, np.float64)
        if given.ndim == 1 and not given.size:  # of an image without points
            given = given.reshape(0, 2)
        flat = given[None] if given.ndim == 2 else given
        places = np.zeros(len(flat), np.int64) if rows is None else np.asarray(rows)
        if (
            flat.ndim != 3
            or flat.shape[-1] != 2
            or len(places) != len(flat)
            or (rows is None and len(self) > 1)
        ):
            raise ValueError(
                f"points must be (x, y), [K, 2] for a view of one row or [N, K, 2] with rows= [N] of its "
                f"{len(self)}, got {list(given.shape)}"
            )
        is_there = self.shows_moved(flat, _at(self.matrices(), flat, places), places)
        return np.asarray(is_there.reshape(given.shape[:-1]))

    def shows_moved(self, points: Float64, moved: Float64, rows: Int64) -> Bool:
        """Return ``shows(points, rows)`` of points [N, K, 2] that ``matrices()`` moved to ``moved``."""
        crops = self.boxes[rows, None].astype(np.float64)
        origin = crops[..., 1::-1]
        is_there = ((points >= origin) & (points < origin + crops[..., :1:-1])).all(axis=-1)
        is_there &= ((moved >= 0) & (moved <= self.size[::-1])).all(axis=-1)
        return np.asarray(is_there & ~self.loses(points, rows))

    def loses(self, points: Float64, rows: Int64) -> Bool:
        """Return which points of the source a step of an augmentation moves out of its frame, but the last.

        Args:
            points: (x, y) in pixels, float64 [N, K, 2].
            rows: Row of each of the N, int64 [N].

        Returns:
            bool [N, K].
        """
        is_lost = np.zeros(points.shape[:2], np.bool_)
        if self.steps is not None:
            some = np.flatnonzero(self.steps.may_lose(self.size)[rows])
            if len(some):
                before = _at(self._unmoved(), points[some], rows[some])
                is_lost[some] = ~self.steps.rows(rows[some]).keep(before, self.size)
        return is_lost

    def rectangles(self, boxes: npt.ArrayLike, rows: npt.ArrayLike | None = None) -> tuple[Float64, Float64]:
        """Move boxes of the source to boxes of the result.

        A box is clipped to the crop, and becomes what is left of it in the result. With an ``affine`` it
        becomes the bounds of its four moved corners, clipped to the result. Of a box that one of several
        ``steps`` moves partly out of its frame, these are the corners of what is left of it.

        Args:
            boxes: (x1, y1, x2, y2) in pixels of the source, [N, 4].
            rows: Row of each box, [N]; by default the only row.

        Returns:
            float64 [N, 4], (x1, y1, x2, y2) in pixels of the result; and float64 [N], the visible share of
            each box's area: 0 for a box outside the crop, which has no size in the result.

        Raises:
            ValueError: The geometry of a row is not known.
        """
        self.check_known()
        given = np.asarray(boxes, np.float64).reshape(-1, 4)
        places = np.zeros(len(given), np.int64) if rows is None else np.asarray(rows)
        crops = self.boxes[places].astype(np.float64)
        origin, size = crops[:, 1::-1], crops[:, :1:-1]  # (x, y)
        low = _limited(given[:, :2], origin, origin + size)
        high = _limited(given[:, 2:], origin, origin + size)
        visible = _share(high - low, given[:, 2:] - given[:, :2])
        result = np.array(self.size[::-1], np.float64)
        parts = result if self.places is None else self.places[places, :1:-1].astype(np.float64)
        moved = np.concatenate([(low - origin) * (parts / size), (high - origin) * (parts / size)], axis=1)
        flips = self.flips[places]
        moved[:, 0::2] = np.where(flips[:, None], parts[..., :1] - moved[:, 2::-2], moved[:, 0::2])
        moved = _limited(moved, 0.0, np.tile(parts, 2))  # W * (1 / size) is not W in floating point
        if self.places is not None:
            corners = self.places[places, 1::-1]
            moved[:, :2] += corners
            moved[:, 2:] += corners
        if np.any(self.drops_by_centre):
            centre = (given[:, :2] + given[:, 2:]) / 2
            is_cut = (crops[:, 2:] != self.sizes[places]).any(axis=1)
            is_inside = ((origin < centre) & (centre < origin + size)).all(axis=1) | ~is_cut
            is_inside |= ~self.all_drops[places]
            moved[~is_inside], visible[~is_inside] = 0.0, 0.0
        if self.affine is not None:
            affine = self.affine[places]
            unmoved = moved[:, [[0, 1], [2, 1], [0, 3], [2, 3]]]
            corners = unmoved @ affine[:, :, :2].transpose(0, 2, 1) + affine[:, None, :, 2]
            low, high = corners.min(axis=1), corners.max(axis=1)
            some = np.zeros(0, np.int64)
            if self.steps is not None:
                some = np.flatnonzero(self.steps.may_lose(self.size)[places] & (visible > 0))
            if self.steps is not None and len(some):
                steps = self.steps.rows(places[some])
                ends_within: Bool = np.asarray(steps.keep(unmoved[some], self.size).all(axis=1))
                some = some[~ends_within]
                left, shares = steps.rows(~ends_within).clipped(unmoved[some][:, [0, 1, 3, 2]], self.size)
                low[some], high[some] = left.min(axis=1), left.max(axis=1)
                visible[some] *= shares
            # One that the crop left a side alone would have a size again, turned.
            high = np.where(visible[:, None] > 0, high, low)
            moved = np.concatenate([_limited(low, 0.0, result), _limited(high, 0.0, result)], axis=1)
            visible *= _share(moved[:, 2:] - moved[:, :2], high - low)
        return moved, visible

    def check_known(self) -> None:
        """Raise ValueError if the geometry of a row is not known."""
        known = self.is_known
        if not known.all():
            row = int((~known).argmax())
            height, width = self.sizes[row].tolist()
            raise ValueError(
                f"the geometry of row {row}, an image of {height} x {width}, is not known: steps of "
                "transform= in Python have cropped or moved it. Use crop=, or a transform= that begins with "
                "its crop and has no geometric steps in Python; split.plan() shows them"
            )


def joined(views: Sequence[View]) -> View:
    """Return the view of a batch whose rows are those of several views of one ``size``, one after another."""
    if len(views) == 1:
        return views[0]
    places: Int32 | None = None
    if any(view.places is not None for view in views):
        places = np.concatenate([view.all_places for view in views])
    affine: Float64 | None = None
    if any(view.affine is not None for view in views):
        known = [
            np.tile(np.eye(2, 3), (len(each), 1, 1)) if each.affine is None else each.affine for each in views
        ]
        affine = np.concatenate(known)
    has_steps = any(view.steps is not None for view in views)
    return View(
        sizes=np.concatenate([view.sizes for view in views]),
        boxes=np.concatenate([view.boxes for view in views]),
        flips=np.concatenate([view.flips for view in views]),
        size=views[0].size,
        affine=affine,
        places=places,
        drops_by_centre=drops_of(np.concatenate([view.all_drops for view in views])),
        steps=joined_steps([view._all_steps for view in views]) if has_steps else None,
    )


def drops_of(rows: Bool) -> bool | Bool:
    """Return ``View.drops_by_centre`` by rows [B]."""
    return rows if rows.any() and not rows.all() else bool(rows.any())


def _at(matrices: Float64, points: Float64, rows: Int64) -> Float64:
    """Return points [N, K, 2] moved by the matrices [B, 3, 3] of their rows."""
    return np.asarray(points @ matrices[rows, :2, :2].transpose(0, 2, 1) + matrices[rows, None, :2, 2])


def _share(part: Float64, whole: Float64) -> Float64:
    """Return area of the part over area of the whole: float64 [N], of (width, height) [N, 2]."""
    area = whole[:, 0] * whole[:, 1]
    own = part[:, 0] * part[:, 1]
    shares: Float64 = np.divide(own, area, out=np.zeros(len(area)), where=area > 0)
    return shares


def _limited(values: Float64, low: npt.ArrayLike, high: npt.ArrayLike) -> Float64:
    """Return values as ``numpy.clip``, which takes three times as long for few."""
    return np.minimum(np.maximum(values, low), high)


def _square(affine: Float64) -> Float64:
    """Return matrices [B, 2, 3] as [B, 3, 3]."""
    square = np.zeros((len(affine), 3, 3))
    square[:, :2] = affine
    square[:, 2, 2] = 1.0
    return square
