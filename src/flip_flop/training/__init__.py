"""Training: settings, trainer, and runs that can be killed and resumed."""

from typing import TYPE_CHECKING

from flip_flop.lazy import exports

if TYPE_CHECKING:
    from flip_flop.training.config import F2CConfig, make_config
    from flip_flop.training.data import TrainingData, load_training_data
    from flip_flop.training.run import TrainingRun, train
    from flip_flop.training.trainer import F2CTrainer

__all__ = [
    "F2CConfig",
    "F2CTrainer",
    "TrainingData",
    "TrainingRun",
    "load_training_data",
    "make_config",
    "train",
]

_, __getattr__, __dir__ = exports(
    __name__,
    {
        "config": ("F2CConfig", "make_config"),
        "data": ("TrainingData", "load_training_data"),
        "run": ("TrainingRun", "train"),
        "trainer": ("F2CTrainer",),
    },
)
