"""Which epoch a loader begins next: in a loop of one's own, and under Lightning."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..errors import check_integer, warn
from .rng import LATER_PASS

_LIGHTNING = ("lightning.pytorch.", "pytorch_lightning.")
_FIT_LOOPS = tuple(f"{package}loops.fit_loop" for package in _LIGHTNING)
_HOOKS = tuple(f"{package}trainer.call" for package in _LIGHTNING)


class EpochCounter:
    """Epoch and first batch of the next iteration: the object behind ``loader.sampler``.

    Lightning calls ``set_epoch``, which holds for the next ``iter()`` only.

    Note [a loader that ends early]
    -------------------------------
    Of a dict or list of loaders Lightning's Trainer begins the shorter ones again until the longest has
    ended, without a call of ``set_epoch``. These passes of the Trainer's epoch e are the epochs e + n *
    ``LATER_PASS``: e + 1 would have the order and crops of the Trainer's next epoch. So the epoch alone says
    where a state belongs, and no state is needed where Lightning keeps none, at the end of its epoch. Crops
    and shares that change with the epoch are those of e.

    Attributes:
        on_epoch: Called first by ``set_epoch``; returns the epoch in place of the one it gets.
        on_set: Called last by ``set_epoch``.
        epoch: The epoch of the next ``iter()``.
        is_set: Whether ``set_epoch`` was called for it.
        has_state: Whether ``resume`` was called after the last ``set_epoch``. Of loaders without a length,
            or beside one, Lightning takes a batch before it sets the first epoch of a run.
        varies: Whether epochs have their samples in several orders.
    """

    def __init__(self) -> None:
        self.on_epoch: Callable[[int], int] | None = None
        self.on_set: Callable[[], None] | None = None
        self.epoch = 0
        self.is_set, self.has_state, self.varies = False, False, False
        self._resumed: tuple[int, int, bool] | None = None
        self._is_ahead = False  # begun, of a resumed Trainer that has not set the epoch
        self._step = 1  # to the epoch of a pass for which none is set

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next ``iter()``. ValueError for what is no number of an epoch."""
        check_integer("epoch", epoch, 0, 2**31 - 1)
        epoch = int(epoch)  # of numpy
        is_trainer = _is_trainer(sys._getframe(1))
        if is_trainer and self.varies and _overfits(sys._getframe(1)):
            warn(
                "Lightning turns shuffling off for overfit_batches in torch's DataLoader alone: this loader "
                "has other samples in each epoch. Give Split(shuffle=False), or a ShardDataModule in place "
                "of the loader"
            )
        if self.on_epoch is not None:
            epoch = self.on_epoch(epoch)
        elif is_trainer and not self.has_state and not self._is_ahead:
            _load_missed_state(sys._getframe(1), self)
        resumed, _, is_end = self._resumed or (0, 0, False)
        if is_trainer and resumed >= LATER_PASS and resumed % LATER_PASS == epoch:  # in a further pass
            self.epoch = resumed + is_end * LATER_PASS
        else:
            self.epoch = epoch
            if is_trainer and resumed >= LATER_PASS:  # a further pass ends with the epoch of the Trainer
                self._resumed = None
        self._step = LATER_PASS if is_trainer else 1
        self.is_set, self.has_state, self._is_ahead = True, False, False
        if self.on_set is not None:
            self.on_set()

    def goes_on(self, epoch: int) -> None:
        """Note that the iterator of an epoch goes on, although one was set after it had begun."""
        if self.is_of_trainer:
            self.is_set, self._resumed, self.epoch = False, None, epoch + LATER_PASS

    @property
    def is_of_trainer(self) -> bool:
        """Whether Lightning's Trainer has set the epoch."""
        return self._step != 1

    def leave_trainer(self) -> None:
        """Go on with the next epoch, after the run of a Trainer that has set epochs."""
        if self._step != 1 and not self.is_set:
            self.epoch = self.epoch % LATER_PASS + 1
        self._step, self._is_ahead = 1, False

    def resume(self, epoch: int, batch: int, is_end: bool) -> None:
        """Begin that epoch at that batch. ``is_end``: the next ``iter()`` is the epoch after it.

        An epoch that was set before is forgotten: the last call counts.
        """
        self.is_set, self.has_state = False, True
        self._step, self._is_ahead = 1, False
        self.epoch = _following(epoch) if is_end else epoch
        self._resumed = (epoch, batch, is_end)

    @property
    def is_within(self) -> bool:
        """Whether the next ``iter()`` goes on within an epoch."""
        return self._resumed is not None and self._resumed[1] > 0 and not self._resumed[2]

    @property
    def is_unfinished(self) -> bool:
        """Whether the next ``iter()`` is of the epoch of a state, which was not at its end."""
        return self._resumed is not None and not self._resumed[2]

    def follow(self, other: EpochCounter) -> tuple[int, int]:
        """Take over the next iteration of another counter; return its epoch and first batch."""
        self.epoch, self._resumed = other.epoch, other._resumed
        self.is_set, self.has_state, self._step = other.is_set, other.has_state, other._step
        return (self.epoch, 0) if self._resumed is None else self._resumed[:2]

    @property
    def place(self) -> tuple[int, int]:
        """Epoch of the next ``iter()``, and its first batch."""
        resumed, first, _ = self._resumed or (self.epoch, 0, False)
        return self.epoch, first if resumed == self.epoch else 0

    def begin(self, is_further: bool = False) -> tuple[int, int]:
        """Return the epoch that begins now and its first batch, and advance.

        ``is_further``: the pass before has ended.
        """
        is_ahead = self._begin_ahead(is_further)
        epoch, begins = self.place
        resumed, first, is_end = self._resumed or (epoch, 0, False)
        if resumed < epoch and first and not is_end:
            warn(
                f"the checkpoint is at batch {first} of epoch {resumed}, but epoch {epoch} begins: the other "
                f"batches of epoch {resumed} are left out. Lightning takes an epoch for finished if "
                "max_steps or should_stop ended the run in it. Trainer(max_steps=...) for this run too, or "
                "checkpoints of ModelCheckpoint(every_n_train_steps=n), go on within it."
            )
        if resumed > epoch and first:
            warn(
                f"the checkpoint is at batch {first} of epoch {resumed}, but set_epoch({epoch}) begins epoch "
                f"{epoch} again. To go on from the checkpoint, begin the loop with epoch {resumed}, or leave "
                "set_epoch out."
            )
        is_of_state = self._resumed is not None and self._step == 1
        self.is_set = False
        if is_ahead:  # set_epoch() needs what was resumed
            self.epoch = epoch + LATER_PASS
            return epoch, begins
        self._resumed = None
        self.epoch = _following(epoch) if is_of_state else epoch + self._step
        return epoch, begins

    def _begin_ahead(self, is_further: bool) -> bool:
        """Go to where Lightning's Trainer begins, and return True, if it has not set its epoch yet."""
        is_begun = self.is_set or self.is_of_trainer or (self._is_ahead and is_further)
        found = None if is_begun else _epoch_at_work(sys._getframe(2))
        self._is_ahead = found is not None
        if found is None:
            return False
        now, is_over = found
        epoch, _, is_end = self._resumed or (now, 0, False)
        if self._resumed is not None and is_over:  # perhaps that of another loader, which has ended
            self.resume(epoch, 0, is_end=True)
        elif epoch % LATER_PASS != now and (self.on_epoch is None or is_end):
            self.epoch = now
        else:  # of a state at the end of a pass nothing comes; on_epoch() may go back to another epoch
            self.epoch = epoch
        return True


def _following(epoch: int) -> int:
    """Return the epoch after that of a state, in a loop without a Trainer: after a further pass, its next."""
    return epoch % LATER_PASS + 1 if epoch >= LATER_PASS else epoch + 1


def _is_trainer(frame: FrameType) -> bool:
    """Whether this code was called by Lightning's Trainer. Fabric, which sets each epoch, does not count."""
    names: list[str] = [
        each.f_globals.get("__name__", "") for each in (frame, frame.f_back) if each is not None
    ]
    return names[0].startswith("lightning") and names[-1].startswith(_LIGHTNING)


def hook_at_work(frame: FrameType | None, trainer: object = None) -> str:
    """Return the name of the innermost hook, of a module or callback, that Lightning has called; or "".

    ``trainer``: whose hook it is; None for any.
    """
    while frame is not None:
        if frame.f_globals.get("__name__", "") in _HOOKS:
            caller = frame.f_code.co_name  # of several callbacks: _call_callbacks_on_save_checkpoint
            name = frame.f_locals.get("hook_name") or caller.partition("_call_callbacks_")[2]
            if name and (trainer is None or frame.f_locals.get("trainer") is trainer):
                return str(name)
        frame = frame.f_back
    return ""


def _overfits(frame: FrameType) -> bool:
    """Whether the Trainer that trains here takes the same few batches in each epoch."""
    found = fit_loop_above(frame)
    trainer = None if found is None else getattr(found.f_locals["self"], "trainer", None)
    return getattr(trainer, "overfit_batches", 0) > 0


def _epoch_at_work(frame: FrameType | None) -> tuple[int, bool] | None:
    """Return ``epoch_of_loop`` of Lightning's Trainer that takes a batch before it sets it; None elsewhere.

    For a ``tarpeg.Dataset`` no epoch is set.
    """
    found = fit_loop_above(frame, but="tarpeg.loader.dataset")
    return None if found is None or found.f_code.co_name != "setup_data" else epoch_of_loop(found)


def _load_missed_state(frame: FrameType, counter: EpochCounter) -> None:
    """Load the state of a loader that Lightning has not loaded, as it made the loader before it had it.

    It does so if the module reads ``trainer.estimated_stepping_batches`` (its issue 20550). The attributes
    are private: nothing is loaded in a version without them. Warns if there is no state.
    """
    found = fit_loop_above(frame)
    loop: Any = None if found is None else found.f_locals["self"]
    states: list[Any] = getattr(loop, "_combined_loader_states_to_load", [])
    loaders: list[Any] = getattr(getattr(loop, "_combined_loader", None), "flattened", [])
    own = next((each for each in loaders if getattr(each, "sampler", None) is counter), None)
    if own is None or not getattr(loop, "restarting", False):  # of a validation, or no resumed run
        return
    loaders = [each for each in loaders if hasattr(each, "state_dict") and hasattr(each, "load_state_dict")]
    if len(loaders) == len(states) and own in loaders:
        own.load_state_dict(states[loaders.index(own)])
    elif hasattr(loop, "epoch_loop"):
        warn_of_left_out(loop.epoch_loop)


def warn_of_left_out(loop: Any) -> None:
    """Warn of a checkpoint within an epoch of which Lightning has a position, and the loader has none.

    Lightning does so itself for loaders without a state, which this one has.
    """
    batches = loop.batch_progress
    done = batches.current.processed
    if done and not batches.is_last_batch:
        warn(
            f"the checkpoint is at batch {done} of an epoch, and another data module or "
            "DataLoader wrote it: the epoch begins with its first batch, and the trainer ends it "
            f"{done} batches early, whose samples do not come in it. A checkpoint from the "
            "end of an epoch has no such gap; model.load_state_dict() takes the weights alone."
        )


def fit_loop_above(frame: FrameType | None, but: str = "") -> FrameType | None:
    """Return the frame of Lightning's loop over the batches of a training that has called this.

    None elsewhere, and for what its hooks do, or the module ``but``.
    """
    while frame is not None and (name := frame.f_globals.get("__name__", "")) not in (*_HOOKS, but):
        if name in _FIT_LOOPS:
            return frame
        frame = frame.f_back
    return None


def epoch_of_loop(frame: FrameType) -> tuple[int, bool]:
    """Return the epoch of a frame of ``fit_loop_above``, and whether that of its checkpoint is over."""
    loop = frame.f_locals["self"]
    batches, progress = loop.epoch_loop.batch_progress, loop.epoch_progress
    # A schedule that counts the steps of a run makes the loaders before the loop has its state.
    waiting = getattr(loop.trainer._checkpoint_connector, "_loaded_checkpoint", {}).get("loops", {})
    if saved := waiting.get("fit_loop"):
        batches = type(batches).from_state_dict(saved["epoch_loop.batch_progress"])
        progress = type(progress).from_state_dict(saved["epoch_progress"])
    is_over = batches.is_last_batch and batches.current.ready == batches.current.processed
    return progress.current.ready if is_over else progress.current.processed, is_over
